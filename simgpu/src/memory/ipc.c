/*
 * Device memory that one process exports by a handle of 64 bytes and others open.
 *
 * The daemon keeps the memory while its exporter or any importer has it. This file lists what the
 * process has open. If a context opens a handle again, the address is the same. Opened memory has
 * the exporter's size and cost, but its own pages: written bytes are not shared.
 */
#define _GNU_SOURCE
#include "base/driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x6370696d6973ull /* "simipc" */

struct handle {
	uint64_t magic;
	uint8_t uuid[16];
	uint64_t exporter; /* random number of the exporting process */
	uint64_t token, bytes;
	uint64_t reserved[2];
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

/* An opened handle. It is stale once its context has ended, because then no range has `id`. */
struct opening {
	uint64_t token, base, id;
	uint64_t context; /* serial */
	unsigned int times;
};

static struct opening *openings;
static uint32_t opening_count;

static uint64_t own_number(void)
{
	static uint64_t number;

	while (!number)
		if (syscall(SYS_getrandom, &number, sizeof(number), 0) < 0)
			number = (uint64_t)(uintptr_t)&number ^ now_ns();
	return number;
}

static struct range *range_of(const struct opening *opening, struct device **device)
{
	struct range *range = opening->times ? memory_find(opening->base, device) : NULL;

	return range && range->id == opening->id && range->imported ? range : NULL;
}

/* Returns a free element of `openings`. */
static struct opening *free_place(void)
{
	struct device *device;

	for (uint32_t i = 0; i < opening_count; i++)
		if (!range_of(&openings[i], &device))
			return &openings[i];
	openings = grow(openings, opening_count, sizeof(*openings));
	openings[opening_count] = (struct opening){0};
	return &openings[opening_count++];
}

/* Returns the range that can be exported. Small allocations share a block, which is exported
 * whole. */
static const struct range *exportable(uint64_t address, struct device **device)
{
	const struct range *range = memory_find(address, device);

	if (!range || range->chunk || range->imported || range->managed || range->graph)
		return NULL;
	if (!range->block)
		return range;
	range = arena_find(&(*device)->arena, address);
	return range ? range : arena_find(&(*device)->low, address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	struct handle handle = {.magic = HANDLE_MAGIC, .exporter = own_number()};
	struct context *context;
	struct device *device;
	const struct range *range;
	uint64_t id;
	CUresult result;

	TRY(context_enter(NULL, &context));
	range = exportable(address, &device);
	if (!out || !range)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	id = range->id;
	handle.bytes = range->bytes;
	memcpy(handle.uuid, device->gpu->uuid, sizeof(handle.uuid));
	driver_unlock();
	result = device_export(device, id, &handle.token);
	if (result == CUDA_SUCCESS)
		memcpy(out, &handle, sizeof(handle));
	return result;
}

static CUresult open_new(CUdeviceptr *out, struct context *context, const struct handle *handle)
{
	struct device *device = context->device;
	struct opening *opening = free_place();
	struct range *range =
	    device_addresses(device) ? arena_take(&device->arena, handle->bytes) : NULL;
	CUresult result;

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = device_import(device, context->id, handle->token, &range->id);
	if (result != CUDA_SUCCESS) {
		arena_give(&device->arena, range);
		return result == CUDA_ERROR_INVALID_CONTEXT ? result : CUDA_ERROR_INVALID_HANDLE;
	}
	range->context = context->object.serial;
	range->imported = true;
	*opening = (struct opening){handle->token, range->base, range->id, range->context, 1};
	*out = range->base;
	return CUDA_SUCCESS;
}

static CUresult open_checked(CUdeviceptr *out, struct context *context, const struct handle *handle)
{
	struct device *device;

	if (handle->magic != HANDLE_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle->exporter == own_number())
		return CUDA_ERROR_INVALID_CONTEXT;
	/* No simulated GPU can access another one's memory. */
	if (memcmp(handle->uuid, context->device->gpu->uuid, sizeof(handle->uuid)) != 0)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	for (uint32_t i = 0; i < opening_count; i++) {
		if (openings[i].token != handle->token || !range_of(&openings[i], &device))
			continue;
		/* The process has opened this handle. Only the same context may open it again. */
		if (openings[i].context != context->object.serial)
			return CUDA_ERROR_ALREADY_MAPPED;
		openings[i].times++;
		*out = openings[i].base;
		return CUDA_SUCCESS;
	}
	return open_new(out, context, handle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle given, unsigned int flags)
{
	struct context *context;
	struct handle handle;

	if (!out || flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_enter(NULL, &context));
	memcpy(&handle, &given, sizeof(handle));
	return driver_leave(open_checked(out, context, &handle));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle given, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(out, given, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct context *context;
	struct device *device;
	uint32_t i = 0;

	TRY(context_enter(NULL, &context));
	while (i < opening_count &&
	       (openings[i].base != address || !range_of(&openings[i], &device)))
		i++;
	if (i == opening_count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (--openings[i].times)
		return driver_leave(CUDA_SUCCESS);
	arena_give(&device->arena, memory_find(address, &device));
	uint64_t id = openings[i].id;
	driver_unlock();
	return device_give_back(device, id);
}
