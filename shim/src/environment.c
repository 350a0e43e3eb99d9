/* See environment.h. */
#include "environment.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "counter.h"
#include "directory.h"
#include "quantity_env.h"
#include "uuid.h"

#define SHOWN_CHARS 40 /* of a value that is refused, */
#define NAME_CHARS  80 /* and of its name with the equals sign */

/* What a variable says, for one card or, without a number behind its name, for all. */
struct family {
	const char *name;
	enum vgpu_result refusal;
	enum vgpu_quantity (*read)(const char *text, struct vgpu_environment_limit *limit);
	void (*copy)(struct vgpu_environment_limit *to, const struct vgpu_environment_limit *from);
};

static enum vgpu_quantity read_memory(const char *text, struct vgpu_environment_limit *limit)
{
	enum vgpu_quantity state = vgpu_quantity_bytes(text, &limit->bytes);

	if (state == VGPU_QUANTITY_VALUE && !limit->bytes)
		limit->bytes = VGPU_NO_LIMIT;
	return state;
}

static enum vgpu_quantity read_core(const char *text, struct vgpu_environment_limit *limit)
{
	return vgpu_quantity_percent(text, &limit->core_percent);
}

static void copy_memory(struct vgpu_environment_limit *to,
			const struct vgpu_environment_limit *from)
{
	to->bytes = from->bytes;
}

static void copy_core(struct vgpu_environment_limit *to, const struct vgpu_environment_limit *from)
{
	to->core_percent = from->core_percent;
}

static const struct family FAMILIES[] = {
    {VGPU_ENV_MEMORY_LIMIT, VGPU_ENVIRONMENT_MEMORY, read_memory, copy_memory},
    {VGPU_ENV_CORE_LIMIT, VGPU_ENVIRONMENT_CORE, read_core, copy_core},
};

enum { EVERY_CARD = -1, NO_CARD = -2, NOT_OF_THE_FAMILY = -3 };

/* Which card "NAME=" or "NAME_7=" means. A number that no card can have is the user's mistake. */
static int card_meant(const char *variable, const char *name, const char **value)
{
	size_t length = strlen(name);
	int card = 0;

	*value = strchr(variable, '=');
	if (!*value || strncmp(variable, name, length) != 0)
		return NOT_OF_THE_FAMILY;
	++*value;
	variable += length;
	if (*variable == '=')
		return EVERY_CARD;
	if (*variable++ != '_')
		return NOT_OF_THE_FAMILY;
	if (*variable == '=' || (variable[0] == '0' && variable[1] != '='))
		return NO_CARD;
	for (; *variable != '='; variable++) {
		if (*variable < '0' || *variable > '9' || card >= VGPU_MOST_CARDS)
			return NO_CARD;
		card = card * 10 + (*variable - '0');
	}
	return card < VGPU_MOST_CARDS ? card : NO_CARD;
}

/* NAME="value", without what would break the one line that the user sees. */
static enum vgpu_result refuse(struct vgpu_error *error, enum vgpu_result result,
			       const char *variable)
{
	char shown[256];
	const char *value = strchr(variable, '=') + 1;
	int name_chars = value - variable < NAME_CHARS ? (int)(value - variable) : NAME_CHARS;
	int length = snprintf(shown, sizeof(shown), "%.*s\"%.*s%s\"", name_chars, variable,
			      SHOWN_CHARS, value, strlen(value) > SHOWN_CHARS ? "..." : "");

	for (int i = 0; i < length; i++)
		if (shown[i] < ' ' || shown[i] > '~' || shown[i] == ';')
			shown[i] = '?';
	return vgpu_fail(error, result, 0, shown);
}

static enum vgpu_result read_family(const struct family *family, char *const *variables,
				    struct vgpu_environment *out, struct vgpu_error *error)
{
	bool own[VGPU_MOST_CARDS] = {false};
	struct vgpu_environment_limit every = {VGPU_NO_LIMIT, 0};

	for (; *variables; variables++) {
		const char *value;
		int card = card_meant(*variables, family->name, &value);
		struct vgpu_environment_limit read = {VGPU_NO_LIMIT, 0};

		if (card == NOT_OF_THE_FAMILY)
			continue;
		if (card == NO_CARD || family->read(value, &read) != VGPU_QUANTITY_VALUE)
			return refuse(error, family->refusal, *variables);
		family->copy(card == EVERY_CARD ? &every : &out->limits[card], &read);
		if (card >= 0)
			own[card] = true;
	}
	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (!own[card])
			family->copy(&out->limits[card], &every);
	return VGPU_OK;
}

/* A list that names anything else, "all" or a number, says nothing of UUIDs. */
static void read_list(const char *list, struct vgpu_environment *out)
{
	int count = 0;

	while (list && *list) {
		char name[64];
		size_t length = strcspn(list, ",");
		bool uuid = strncmp(list, "GPU-", 4) == 0 || strncmp(list, "MIG-", 4) == 0;

		if (!uuid || length >= sizeof(name) || count == VGPU_MOST_CARDS)
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

static bool limits_memory(const struct vgpu_environment *environment)
{
	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (environment->limits[card].bytes != VGPU_NO_LIMIT)
			return true;
	return false;
}

enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error)
{
	const char *cache = value_of(variables, VGPU_ENV_SHARED_CACHE);

	*out = (struct vgpu_environment){.listed_count = 0};
	for (unsigned int i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++) {
		enum vgpu_result result = read_family(&FAMILIES[i], variables, out, error);

		if (result != VGPU_OK)
			return result;
	}
	if (!limits_memory(out))
		return vgpu_fail(error, VGPU_UNMANAGED, 0, "");
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
	for (int card = 0; card < environment->listed_count; card++)
		if (memcmp(environment->listed[card], uuid, 16) == 0)
			return card;
	return -1;
}
