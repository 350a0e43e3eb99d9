#include "region/environment.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "os/text.h"
#include "os/uuid.h"
#include "region/counter.h"

#define SHOWN_CHARS 40 /* longest part of a refused value in the error */
#define NAME_CHARS  80 /* longest part of the variable's name in the error */

static unsigned int shift_of(char unit)
{
	switch (unit | ('a' ^ 'A')) {
	case 'k':
		return 10;
	case 'm':
		return 20;
	case 'g':
		return 30;
	default:
		return 0;
	}
}

/* Read a decimal number with an optional unit k, m or g (1024-based, either case). Any other text
 * is refused, whereas HAMi's own parser reads "1GB" as one byte and "-1" as no limit. */
static bool read_bytes(const char *text, uint64_t *bytes)
{
	unsigned int shift;

	if (!vgpu_text_number(&text, 10, INT64_MAX, bytes))
		return false;
	shift = shift_of(*text);
	if (text[shift ? 1 : 0] || *bytes > (uint64_t)INT64_MAX >> shift)
		return false;
	*bytes <<= shift;
	return true;
}

static bool read_limit(const char *text, uint64_t *bytes)
{
	if (!read_bytes(text, bytes))
		return false;
	if (!*bytes)
		*bytes = VGPU_NO_LIMIT;
	return true;
}

static bool read_percent(const char *text, uint64_t *percent)
{
	return vgpu_text_number(&text, 10, 100, percent) && !*text;
}

/* Variables of one kind: NAME_N has the value for GPU N, and NAME the value for all other GPUs. */
struct family {
	const char *name;
	enum vgpu_result refusal;
	bool (*read)(const char *text, uint64_t *value);
	uint64_t if_unset;
};

static const struct family MEMORY = {VGPU_ENV_MEMORY_LIMIT, VGPU_ENVIRONMENT_MEMORY, read_limit,
				     VGPU_NO_LIMIT};
static const struct family CORE = {VGPU_ENV_CORE_LIMIT, VGPU_ENVIRONMENT_CORE, read_percent, 0};

enum { EVERY_GPU = -1, NO_GPU = -2, NOT_OF_THE_FAMILY = -3 };

/* The GPU that "NAME=" or "NAME_7=" means. NO_GPU: the variable's number is not valid. */
static int gpu_meant(const char *variable, const char *name, const char **value)
{
	size_t length = strlen(name);
	uint64_t gpu;

	*value = strchr(variable, '=');
	if (!*value || strncmp(variable, name, length) != 0)
		return NOT_OF_THE_FAMILY;
	++*value;
	variable += length;
	if (*variable == '=')
		return EVERY_GPU;
	if (*variable++ != '_')
		return NOT_OF_THE_FAMILY;
	if ((variable[0] == '0' && variable[1] != '=') ||
	    !vgpu_text_number(&variable, 10, VGPU_ENVIRONMENT_MAX_GPUS - 1, &gpu) ||
	    *variable != '=')
		return NO_GPU;
	return (int)gpu;
}

/* Name the variable and its invalid value in the error. Characters that could break the line are
 * replaced. */
static enum vgpu_result refuse(struct vgpu_error *error, enum vgpu_result result,
			       const char *variable)
{
	char shown[256];
	const char *value = strchr(variable, '=') + 1;
	int name_chars = (int)strcspn(variable, "="), length;

	if (name_chars > NAME_CHARS)
		name_chars = NAME_CHARS;
	if (result == VGPU_ENVIRONMENT_GPU)
		length = snprintf(shown, sizeof(shown), "environment %.*s: invalid name",
				  name_chars, variable);
	else
		length = snprintf(
		    shown, sizeof(shown), "environment %.*s: invalid value \"%.*s%s\"", name_chars,
		    variable, SHOWN_CHARS, value, strlen(value) > SHOWN_CHARS ? "..." : "");
	for (int i = 0; i < length; i++)
		if (shown[i] < ' ' || shown[i] > '~' || shown[i] == ';')
			shown[i] = '?';
	return vgpu_fail(error, result, 0, shown);
}

static enum vgpu_result read_family(const struct family *family, char *const *variables,
				    uint64_t values[VGPU_ENVIRONMENT_MAX_GPUS],
				    struct vgpu_error *error)
{
	bool own[VGPU_ENVIRONMENT_MAX_GPUS] = {false};
	uint64_t every = family->if_unset, value;
	const char *text;

	for (; *variables; variables++) {
		int gpu = gpu_meant(*variables, family->name, &text);

		if (gpu == NOT_OF_THE_FAMILY)
			continue;
		if (gpu == NO_GPU)
			return refuse(error, VGPU_ENVIRONMENT_GPU, *variables);
		if (!family->read(text, &value))
			return refuse(error, family->refusal, *variables);
		*(gpu == EVERY_GPU ? &every : &values[gpu]) = value;
		if (gpu >= 0)
			own[gpu] = true;
	}
	for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		if (!own[gpu])
			values[gpu] = every;
	return VGPU_OK;
}

static enum vgpu_result read_limits(char *const *variables, struct vgpu_environment *out,
				    struct vgpu_error *error)
{
	uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS], percents[VGPU_ENVIRONMENT_MAX_GPUS];
	enum vgpu_result result = read_family(&MEMORY, variables, bytes, error);
	bool any = false;

	if (result == VGPU_OK)
		result = read_family(&CORE, variables, percents, error);
	for (int gpu = 0; result == VGPU_OK && gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++) {
		out->limits[gpu] =
		    (struct vgpu_environment_limit){bytes[gpu], (uint32_t)percents[gpu]};
		any |= bytes[gpu] != VGPU_NO_LIMIT || percents[gpu] % 100;
	}
	return result != VGPU_OK || any ? result : vgpu_fail(error, VGPU_UNMANAGED, 0, "");
}

/* Read the list of UUIDs. A list that contains another word, such as "all" or a number, counts as
 * empty. */
static void read_list(const char *list, struct vgpu_environment *out)
{
	int count = 0;

	while (list && *list) {
		char name[64];
		size_t length = strcspn(list, ",");
		bool uuid = strncmp(list, "GPU-", 4) == 0 || strncmp(list, "MIG-", 4) == 0;

		if (!uuid || length >= sizeof(name) || count == VGPU_ENVIRONMENT_MAX_GPUS)
			return;
		memcpy(name, list, length);
		name[length] = '\0';
		if (!vgpu_uuid_parse(name, sizeof(name), out->listed[count++]))
			return;
		list += length + (list[length] == ',');
	}
	out->listed_count = count;
}

static const char *value_of(char *const *variables, const char *name)
{
	size_t length = strlen(name);

	for (; *variables; variables++)
		if (strncmp(*variables, name, length) == 0 && (*variables)[length] == '=')
			return *variables + length + 1;
	return NULL;
}

static enum vgpu_result read_context(char *const *variables, struct vgpu_environment *out,
				     struct vgpu_error *error)
{
	const char *text = value_of(variables, VGPU_ENV_CONTEXT);

	out->context_bytes = VGPU_CONTEXT_BYTES_ASSUMED;
	if (!text || read_bytes(text, &out->context_bytes))
		return VGPU_OK;
	return refuse(error, VGPU_ENVIRONMENT_CONTEXT, text - sizeof(VGPU_ENV_CONTEXT));
}

enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error)
{
	const char *cache = value_of(variables, VGPU_ENV_SHARED_CACHE);
	enum vgpu_result result;

	*out = (struct vgpu_environment){.listed_count = 0};
	result = read_limits(variables, out, error);
	if (result != VGPU_OK)
		return result;
	result = read_context(variables, out, error);
	if (result != VGPU_OK)
		return result;
	if (!cache)
		cache = VGPU_SHARED_CACHE_PATH;
	if (!*cache || strlen(cache) >= sizeof(out->cache))
		return vgpu_fail(error, VGPU_CACHE_UNUSABLE, 0, VGPU_ENV_SHARED_CACHE);
	strcpy(out->cache, cache);
	read_list(value_of(variables, VGPU_ENV_VISIBLE_DEVICES), out);
	return VGPU_OK;
}

int vgpu_environment_number(const struct vgpu_environment *environment, const uint8_t uuid[16],
			    int number)
{
	if (!environment->listed_count)
		return number;
	for (int gpu = 0; gpu < environment->listed_count; gpu++)
		if (memcmp(environment->listed[gpu], uuid, 16) == 0)
			return gpu;
	return -1;
}
