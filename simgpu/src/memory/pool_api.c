/*
 * cuMemPool*: pools as programs name, tune and trim them. pool.c manages their memory.
 *
 * Only pools in device memory are supported, including a locality domain's and managed memory.
 * Pools in host memory are not.
 */
#include "memory/pool.h"

#include <string.h>

CUresult pool_enter(CUmemoryPool handle, struct pool **pool)
{
	TRY(driver_enter());
	*pool = object_get(handle, OBJECT_POOL);
	return *pool && !(*pool)->destroyed ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* Returns the handle of the device's default or current pool. */
static CUresult pool_of_device(CUmemoryPool *out, CUdevice ordinal, bool current)
{
	struct device *device;
	struct pool *pool;

	TRY(driver_enter());
	TRY_LOCKED(out ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE);
	pool = current && device->current_pool ? device->current_pool : pool_default(device);
	*out = object_handle(pool);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	return pool_of_device(out, ordinal, false);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	return pool_of_device(out, ordinal, true);
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
	struct device *device;
	struct pool *pool;

	TRY(pool_enter(handle, &pool));
	TRY_LOCKED(device_get(ordinal, &device));
	if (pool->device != device || pool->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device->current_pool = pool;
	return driver_leave(CUDA_SUCCESS);
}

/* Finds the device. Managed memory without a preferred location is on the current device. */
static CUresult device_of_pool(const CUmemPoolProps *properties, struct device **device)
{
	bool managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
	struct context *context;
	int ordinal = properties->location.id;

	if (managed && properties->location.type == CU_MEM_LOCATION_TYPE_NONE) {
		CUresult result = context_current(&context);

		*device = result == CUDA_SUCCESS ? context->device : NULL;
		return result;
	}
	if (!managed && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		ordinal &= 0xff;
	else if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return device_get(ordinal, device) == CUDA_SUCCESS ? CUDA_SUCCESS
							   : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
	struct device *device;
	struct pool *pool;

	TRY(driver_enter());
	if (!out || !properties ||
	    (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
	     properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED) ||
	    properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	TRY_LOCKED(device_of_pool(properties, &device));
	pool = pool_new(device);
	pool->handle_types = properties->handleTypes;
	pool->max_bytes = properties->maxSize;
	*out = object_handle(pool);
	return driver_leave(CUDA_SUCCESS);
}

/* Allocations remain. The pool ends at a synchronisation after the last one is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct chunk *gone = NULL;
	struct pool *pool;

	TRY(pool_enter(handle, &pool));
	if (pool->is_default)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (pool->device->current_pool == pool)
		pool->device->current_pool = NULL;
	pool->destroyed = true;
	pool->threshold_bytes = 0;
	pool_trim(pool, 0, &gone);
	driver_unlock();
	chunks_give_back(gone);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	struct chunk *gone = NULL;
	struct pool *pool;

	TRY(pool_enter(handle, &pool));
	TRY_LOCKED(capture_allows());
	pool_trim(pool, keep_bytes, &gone);
	driver_unlock();
	chunks_give_back(gone);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct pool *pool;

	TRY(pool_enter(handle, &pool));
	const uint64_t words[] = {
	    [CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = pool->threshold_bytes,
	    [CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = pool->reserved_bytes,
	    [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = pool->reserved_high_bytes,
	    [CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = pool->used_bytes,
	    [CU_MEMPOOL_ATTR_USED_MEM_HIGH] = pool->used_high_bytes,
	};
	if (!value || attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
	    attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	else
		memcpy(value, &words[attribute], sizeof(uint64_t));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct pool *pool;

	TRY(pool_enter(handle, &pool));
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	    attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return driver_leave(CUDA_SUCCESS);
	}
	if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&pool->threshold_bytes, value, sizeof(pool->threshold_bytes));
	return driver_leave(CUDA_SUCCESS);
}
