/*
 * Device memory: the daemon decides and counts, the arena gives the addresses.
 *
 * The lock is not held while the daemon is asked, so that threads are served as they come; what was
 * looked up before is looked up again.
 */
#include "graph.h"
#include "pool.h"
#include "vmm.h"

#include <stdlib.h>

#define LOW_BYTES   (512ull << 20)
#define PITCH_BYTES 512

struct range *memory_find(uint64_t address, struct device **device)
{
	for (int i = 0; i < driver.devices; i++) {
		struct range *range = arena_find(&driver.device[i].arena, address);

		*device = &driver.device[i];
		range = range ? range : arena_find(&driver.device[i].low, address);
		if (range)
			return range->chunk ? chunk_find(range->chunk, address) : range;
	}
	return NULL;
}

static CUresult give_back(struct device *device, uint64_t id)
{
	struct sim_id freed = {.id = id};

	return driver_result(
	    sim_call(device->link, SIM_MEMORY_FREE, &freed, sizeof(freed), NULL, 0, NULL));
}

/* After the daemon granted `id`: the address, or nothing at all. */
static CUresult place(CUcontext handle, struct device *device, bool low,
		      const struct sim_alloc *granted, uint64_t bytes, uint64_t id,
		      CUdeviceptr *out)
{
	struct arena *arena = low ? &device->low : &device->arena;
	struct context *context;
	struct range *range = NULL;
	CUresult result;

	driver_lock();
	result = context_get(handle, &context);
	/* A primary context may have gone and come back by the same handle. */
	if (result == CUDA_SUCCESS && context->id != granted->context)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result == CUDA_SUCCESS && arena_reserve(arena, LOW_BYTES, true))
		range = arena_take(arena, bytes);
	if (range) {
		range->id = id;
		range->context = context->object.serial;
		*out = range->base;
		return driver_leave(CUDA_SUCCESS);
	}
	driver_unlock();
	/* A context that is gone took its memory along. */
	if (result != CUDA_SUCCESS)
		return result;
	give_back(device, id);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *out, uint64_t bytes, bool low)
{
	struct context *context;
	struct device *device;
	struct sim_alloc request;
	struct sim_id id;
	CUcontext handle;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(&context);
	if (result == CUDA_SUCCESS && (!out || !bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && bytes > UINT64_MAX - SIM_GRANULE_BYTES)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		result = capture_allows();
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	device = context->device;
	handle = object_handle(context);
	request.context = context->id;
	request.bytes = (bytes + SIM_GRANULE_BYTES - 1) & ~(uint64_t)(SIM_GRANULE_BYTES - 1);
	driver_unlock();
	result = driver_result(sim_call(device->link, SIM_MEMORY_ALLOC, &request, sizeof(request),
					&id, sizeof(id), NULL));
	return result == CUDA_SUCCESS ? place(handle, device, low, &request, bytes, id.id, out)
				      : result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	return allocate(out, bytes, false);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes)
{
	CUdeviceptr wide;
	CUresult result = allocate(out ? &wide : NULL, bytes, true);

	if (result == CUDA_SUCCESS)
		*out = (CUdeviceptr_v1)wide;
	return result;
}

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
			       unsigned int element, bool low)
{
	CUresult result = driver_enter();
	size_t row = (width + PITCH_BYTES - 1) & ~(size_t)(PITCH_BYTES - 1);

	if (result != CUDA_SUCCESS)
		return result;
	driver_unlock();
	if (!out || !pitch || !width || !height || row < width ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (height > SIZE_MAX / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = allocate(out, row * height, low);
	if (result == CUDA_SUCCESS)
		*pitch = row;
	return result;
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
	CUresult result =
	    allocate_pitch(out ? &wide : NULL, pitch ? &row : NULL, width, height, element, true);

	if (result != CUDA_SUCCESS)
		return result;
	*out = (CUdeviceptr_v1)wide;
	*pitch = (unsigned int)row;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	struct context *context;
	struct device *device;
	struct range *range;
	uint64_t id;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!address)
		return driver_leave(CUDA_SUCCESS);
	result = context_current(&context);
	if (result == CUDA_SUCCESS)
		result = capture_allows();
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	range = memory_find(address, &device);
	if (!range && buffer_unmap(address))
		return physical_leave(CUDA_SUCCESS);
	if (!range || range->base != address || range->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (range->graph)
		return driver_leave(graph_memory_free(range->graph, 0) ? CUDA_SUCCESS
								       : CUDA_ERROR_INVALID_VALUE);
	if (range->chunk) {
		chunk_free(range->chunk, address, 0, 0);
		return driver_leave(CUDA_SUCCESS);
	}
	/* The address is free before the bytes are: another thread may get it, never both. */
	id = range->id;
	arena_give(device->arena.base && arena_find(&device->arena, address) == range
		       ? &device->arena
		       : &device->low,
		   range);
	driver_unlock();
	return give_back(device, id);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	struct sim_memory memory;
	struct context *context;
	struct sim_link *link;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(&context);
	if (result == CUDA_SUCCESS && (!free_bytes || !total_bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	link = context->device->link;
	driver_unlock();
	result =
	    driver_result(sim_call(link, SIM_MEMORY_INFO, NULL, 0, &memory, sizeof(memory), NULL));
	if (result != CUDA_SUCCESS)
		return result;
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
	CUresult result =
	    cuMemGetInfo_v2(free_bytes ? &wide_free : NULL, total_bytes ? &wide_total : NULL);

	if (result != CUDA_SUCCESS)
		return result;
	*free_bytes = saturated(wide_free);
	*total_bytes = saturated(wide_total);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	struct context *context;
	struct device *device;
	struct range *range;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(&context);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
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

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 address)
{
	CUdeviceptr wide_base = 0;
	size_t wide_bytes = 0;
	CUresult result = cuMemGetAddressRange_v2(&wide_base, &wide_bytes, address);

	if (result != CUDA_SUCCESS)
		return result;
	if (base)
		*base = (CUdeviceptr_v1)wide_base;
	if (bytes)
		*bytes = saturated(wide_bytes);
	return CUDA_SUCCESS;
}
