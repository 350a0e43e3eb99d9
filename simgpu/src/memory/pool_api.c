/*
 * cuMemPool*: pools as programs name, tune and trim them. pool.c manages their memory.
 *
 * Pools in device memory alone, a part of a device's or managed among it; those of hosts are not
 * supported.
 */
#include "memory/pool.h"

#include <string.h>

CUresult pool_enter(CUmemoryPool handle, struct pool **pool)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*pool = object_get(handle, OBJECT_POOL);
	return *pool && !(*pool)->destroyed ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* A pool's handle for a query about a device. */
static CUresult pool_of_device(CUmemoryPool *out, CUdevice ordinal, bool current)
{
	struct device *device;
	struct pool *pool;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = out ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	pool = current && device->current_pool ? device->current_pool : pool_default(device);
	if (!pool)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
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
	CUresult result = pool_enter(handle, &pool);

	if (result != CUDA_SUCCESS)
		return result;
	result = device_get(ordinal, &device);
	if (result == CUDA_SUCCESS && (pool->device != device || pool->imported))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		device->current_pool = pool;
	return driver_leave(result);
}

/* The queries by location, of CUDA 13. */
static CUresult location_check(const CUmemLocation *location, int type)
{
	if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_SUCCESS
							     : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? pool_of_device(out, location->id, false) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? pool_of_device(out, location->id, true) : result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	CUresult result = location_check(location, type);

	return result == CUDA_SUCCESS ? cuDeviceSetMemPool(location->id, pool) : result;
}

/* Managed memory that prefers no location lies on the current device. */
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
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !properties ||
	    (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
	     properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED) ||
	    properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = device_of_pool(properties, &device);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	pool = pool_new(device);
	if (!pool)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	pool->handle_types = properties->handleTypes;
	pool->max_bytes = properties->maxSize;
	*out = object_handle(pool);
	return driver_leave(CUDA_SUCCESS);
}

/* Memory that is still allocated from it remains; freeing the last of it ends the pool. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct chunk *gone = NULL;
	struct pool *pool;
	CUresult result = pool_enter(handle, &pool);

	if (result != CUDA_SUCCESS)
		return result;
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
	CUresult result = pool_enter(handle, &pool);

	if (result != CUDA_SUCCESS)
		return result;
	result = capture_allows();
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	pool_trim(pool, keep_bytes, &gone);
	driver_unlock();
	chunks_give_back(gone);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct pool *pool;
	CUresult result = pool_enter(handle, &pool);

	if (result != CUDA_SUCCESS)
		return result;
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

/* A high watermark can be set to zero alone: it then takes the current value. */
static CUresult reset_high(uint64_t *high_bytes, uint64_t current_bytes, uint64_t value)
{
	if (value)
		return CUDA_ERROR_INVALID_VALUE;
	*high_bytes = current_bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct pool *pool;
	CUresult result = pool_enter(handle, &pool);
	uint64_t word;

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	    attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return driver_leave(CUDA_SUCCESS);
	}
	memcpy(&word, value, sizeof(word));
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold_bytes = word;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		result = reset_high(&pool->reserved_high_bytes, pool->reserved_bytes, word);
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		result = reset_high(&pool->used_high_bytes, pool->used_bytes, word);
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return driver_leave(result);
}

/* There is no peer access between simulated GPUs, except a GPU's access to itself. */
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
	struct device *device;
	struct pool *pool;
	CUresult result = pool_enter(handle, &pool);

	if (result != CUDA_SUCCESS)
		return result;
	if (!map && count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    device_get(map[i].location.id, &device) != CUDA_SUCCESS)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (device != pool->device)
			result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
		else if (map[i].flags != CU_MEM_ACCESS_READWRITE)
			result = CUDA_ERROR_INVALID_VALUE; /* its access to itself remains */
	}
	return driver_leave(result);
}
