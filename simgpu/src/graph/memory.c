/*
 * Device memory: the daemon decides and counts, the arena provides the addresses.
 *
 * The lock is not held during a request to the daemon. Therefore objects must be looked up again
 * after the request.
 */
#include "graph/graph.h"
#include "memory/pool.h"
#include "memory/suballoc.h"
#include "memory/vmm.h"

#include <stdlib.h>

#define LOW_BYTES   (512ull << 20)
#define PITCH_BYTES 512

struct range *memory_find(uint64_t address, struct device **device)
{
	for (int i = 0; i < driver.devices; i++) {
		struct range *range = arena_find(&driver.device[i].arena, address);

		*device = &driver.device[i];
		range = range ? range : arena_find(&driver.device[i].low, address);
		if (!range)
			continue;
		if (range->chunk)
			return chunk_find(range->chunk, address);
		if (range->block)
			range = suballoc_find(range->block, address);
		return range && !range->leaving ? range : NULL;
	}
	return NULL;
}

/* A requested allocation. */
struct wish {
	CUcontext handle;
	struct device *device;
	uint64_t context; /* the daemon's id, because a primary context's handle is reused */
	uint64_t bytes;
	bool low, managed;
};

/* Takes the lock and finds the request's context. Fails if another context has its handle now. */
static CUresult enter_again(const struct wish *wish, struct context **context)
{
	CUresult result;

	driver_lock();
	result = context_get(wish->handle, context);
	if (result == CUDA_SUCCESS && (*context)->id != wish->context)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

/* Chooses addresses for memory that the daemon granted as `id`. NULL: none are left. */
static struct range *place(const struct wish *wish, const struct context *context, uint64_t bytes,
			   uint64_t id)
{
	struct arena *arena = wish->low ? &wish->device->low : &wish->device->arena;
	struct range *range =
	    arena_reserve(arena, LOW_BYTES, true) ? arena_take(arena, bytes) : NULL;

	if (range) {
		range->id = id;
		range->context = context->object.serial;
		range->managed = wish->managed;
	}
	return range;
}

static CUresult allocate_own(const struct wish *wish, CUdeviceptr *out)
{
	struct context *context;
	struct range *range;
	uint64_t id;

	TRY(device_take(wish->device, wish->context, wish->bytes, &id));
	/* If the context has ended, the daemon has freed its memory. */
	TRY(enter_again(wish, &context));
	range = place(wish, context, wish->bytes, id);
	*out = range ? range->base : 0;
	driver_unlock();
	if (range)
		return CUDA_SUCCESS;
	device_give_back(wish->device, id);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static enum block_kind kind_of(const struct wish *wish)
{
	if (wish->managed)
		return BLOCK_MANAGED;
	return wish->low ? BLOCK_LOW : BLOCK_PLAIN;
}

/* Allocates in the context's blocks. If they are full, adds a block, unless another thread did. */
static CUresult allocate_shared(const struct wish *wish, CUdeviceptr *out)
{
	uint64_t block_bytes = wish->device->gpu->granule_bytes, id;
	struct context *context;
	struct range *range;

	TRY(device_alive(wish->device->link));
	TRY(enter_again(wish, &context));
	*out = suballoc_take(context, kind_of(wish), wish->bytes);
	driver_unlock();
	if (*out)
		return CUDA_SUCCESS;
	TRY(device_take(wish->device, wish->context, block_bytes, &id));
	TRY(enter_again(wish, &context));
	*out = suballoc_take(context, kind_of(wish), wish->bytes);
	range = *out ? NULL : place(wish, context, block_bytes, id);
	if (range) {
		suballoc_add(context, kind_of(wish), range);
		*out = suballoc_take(context, kind_of(wish), wish->bytes);
	}
	driver_unlock();
	if (!range)
		device_give_back(wish->device, id);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *out, uint64_t bytes, bool low, bool managed)
{
	struct context *context;
	struct wish wish = {.bytes = bytes, .low = low, .managed = managed};

	TRY(context_enter(NULL, &context));
	if (!out || !bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (bytes > UINT64_MAX - SIM_GRANULE_BYTES)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	TRY_LOCKED(capture_allows());
	wish.device = context->device;
	wish.handle = object_handle(context);
	wish.context = context->id;
	driver_unlock();
	return suballoc_applies(wish.device, bytes) ? allocate_shared(&wish, out)
						    : allocate_own(&wish, out);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	return allocate(out, bytes, false, false);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes)
{
	CUdeviceptr wide;
	CUresult result = allocate(out ? &wide : NULL, bytes, true, false);

	if (result == CUDA_SUCCESS)
		*out = (CUdeviceptr_v1)wide;
	return result;
}

/* Managed memory has real pages of the process, and is charged on the GPU in full at once. */
CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
	if (!out || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(out, bytes, false, true);
}

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
			       unsigned int element, bool low)
{
	size_t row = (width + PITCH_BYTES - 1) & ~(size_t)(PITCH_BYTES - 1);

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !pitch || !width || !height || row < width ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (height > SIZE_MAX / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(allocate(out, row * height, low, false));
	*pitch = row;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
			    unsigned int element)
{
	return allocate_pitch(out, pitch, width, height, element, false);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width,
			 unsigned int height, unsigned int element)
{
	CUdeviceptr wide;
	size_t row;

	TRY(allocate_pitch(out ? &wide : NULL, pitch ? &row : NULL, width, height, element, true));
	*out = (CUdeviceptr_v1)wide;
	*pitch = (unsigned int)row;
	return CUDA_SUCCESS;
}

/* Frees the address, which another thread may reuse before the caller has freed the bytes. */
uint64_t memory_end(struct device *device, struct range *range)
{
	uint64_t address = range->base, id;

	if (range->block && !suballoc_give(range->block, address, &range))
		return 0;
	id = range->id;
	arena_give(device->arena.base && arena_find(&device->arena, address) == range
		       ? &device->arena
		       : &device->low,
		   range);
	return id;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	static const struct mark at_once;
	struct context *context;
	struct device *device = NULL;
	struct range *range;
	uint64_t id;

	TRY(driver_enter());
	if (!address)
		return driver_leave(CUDA_SUCCESS);
	TRY_LOCKED(context_current(&context));
	TRY_LOCKED(capture_allows());
	range = memory_find(address, &device);
	if (!range && buffer_unmap(address))
		return physical_leave(CUDA_SUCCESS);
	if (!range || range->base != address || range->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (range->graph)
		return driver_leave(graph_memory_free(range->graph, &at_once)
					? CUDA_SUCCESS
					: CUDA_ERROR_INVALID_VALUE);
	if (range->chunk) {
		chunk_free(range->chunk, address, 0, &at_once);
		return driver_leave(CUDA_SUCCESS);
	}
	id = memory_end(device, range);
	driver_unlock();
	return id ? device_give_back(device, id) : device_alive(device->link);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	struct sim_memory memory;
	struct context *context;
	struct sim_link *link;

	TRY(context_enter(NULL, &context));
	if (!free_bytes || !total_bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	link = context->device->link;
	driver_unlock();
	TRY(driver_result(sim_call(link, SIM_MEMORY_INFO, NULL, 0, &memory, sizeof(memory), NULL)));
	*free_bytes = memory.free_bytes;
	*total_bytes = memory.total_bytes;
	return CUDA_SUCCESS;
}

static unsigned int saturated(size_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	size_t wide_free, wide_total;

	TRY(cuMemGetInfo_v2(free_bytes ? &wide_free : NULL, total_bytes ? &wide_total : NULL));
	*free_bytes = saturated(wide_free);
	*total_bytes = saturated(wide_total);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	struct context *context;
	struct device *device;
	struct range *range;

	TRY(context_enter(NULL, &context));
	range = memory_find(address, &device);
	if (!range && mapping_find(address))
		range = &mapping_find(address)->range;
	if (!range)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = range->base;
	if (bytes)
		*bytes = range->bytes;
	return driver_leave(CUDA_SUCCESS);
}
