/* cuInit, the GPUs visible to a program, and error names. */
#include "base/driver.h"
#include "entry/resolve.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int hex_digit(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit |= 0x20;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Whether the UUID begins with `text`, because CUDA_VISIBLE_DEVICES may shorten UUIDs. */
static bool uuid_begins(const uint8_t *uuid, const char *text, size_t length)
{
	size_t nibble = 0;

	for (size_t i = 0; i < length; i++) {
		int digit = hex_digit(text[i]);

		if (text[i] == '-')
			continue;
		if (digit < 0 || nibble == 32 ||
		    (uuid[nibble / 2] >> (nibble % 2 ? 0 : 4) & 0xf) != digit)
			return false;
		nibble++;
	}
	return nibble > 0;
}

/* Finds the link that an entry of CUDA_VISIBLE_DEVICES names. Returns -1 for none or several. */
static int link_named(struct sim_link **links, int count, const char *text, size_t length)
{
	int found = -1;

	if (length > 4 && (strncasecmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)) {
		for (int i = 0; i < count; i++) {
			const struct sim_gpu *gpu = sim_link_gpu(links[i]);
			const uint8_t *uuid = *text == 'M' ? gpu->mig_uuid : gpu->uuid;

			if (!uuid_begins(uuid, text + 4, length - 4))
				continue;
			if (found >= 0)
				return -1;
			found = i;
		}
		return found;
	}
	found = 0;
	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9' || found > count)
			return -1;
		found = found * 10 + (text[i] - '0');
	}
	return length && found < count ? found : -1;
}

static uint32_t speed_of(const struct sim_link *link)
{
	return sim_link_gpu(link)->multiprocessors;
}

/* Sorts faster GPUs first. Equally fast ones stay in bus order. */
static void sort_by_speed(struct sim_link **links, int count)
{
	for (int i = 1; i < count; i++) {
		struct sim_link *link = links[i];
		int at = i;

		for (; at > 0 && speed_of(links[at - 1]) < speed_of(link); at--)
			links[at] = links[at - 1];
		links[at] = link;
	}
}

static void add_device(struct sim_link *link)
{
	struct device *device = &driver.device[driver.devices];

	device->link = link;
	device->gpu = sim_link_gpu(link);
	device->ordinal = driver.devices++;
}

/*
 * Adds the program's GPUs: all, or those that the list `visible` names, in its order. The list ends
 * before the first entry that names no GPU or a GPU again. Links to other GPUs are closed.
 */
static void choose_devices(struct sim_link **links, int count, const char *visible)
{
	bool chosen[SIM_MAX_GPUS] = {false};

	for (int i = 0; !visible && i < count; i++)
		add_device(links[i]);
	if (!visible)
		return;
	for (;;) {
		size_t length = strcspn(visible, ",");
		int link = link_named(links, count, visible, length);

		if (link < 0 || chosen[link])
			break;
		chosen[link] = true;
		add_device(links[link]);
		if (!visible[length])
			break;
		visible += length + 1;
	}
	for (int i = 0; i < count; i++)
		if (!chosen[i])
			sim_links_close(&links[i], 1);
}

static CUresult find_devices(void)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	struct sim_link *links[SIM_MAX_GPUS];
	int count = sim_links_open(links, SIM_MAX_GPUS, SIM_ROLE_CUDA);

	if (!order || strcmp(order, "PCI_BUS_ID") != 0)
		sort_by_speed(links, count);
	choose_devices(links, count, getenv("CUDA_VISIBLE_DEVICES"));
	return driver.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuInit(unsigned int flags)
{
	if (driver_is_child())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	return driver_leave(driver_begin(find_devices));
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim_cuda_version;
	return CUDA_SUCCESS;
}

static const struct error {
	int value, since;
	const char *name, *text;
} errors[] = {
#define X(name, value, since, text) {value, since, #name, text},
#include "abi/cuda_errors.def"
#undef X
};

static const struct error *error_find(int value)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (errors[i].value == value && errors[i].since <= sim_cuda_version)
			return &errors[i];
	return NULL;
}

CUresult cuGetErrorString(int error, const char **text)
{
	const struct error *found = error_find(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = found ? found->text : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(int error, const char **name)
{
	const struct error *found = error_find(error);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = found ? found->name : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
