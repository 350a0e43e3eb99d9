/*
 * Stream-ordered memory: one pool, which is the device's default. A stream's work is done when it
 * is submitted, so freed memory can be reused at once. At the next synchronisation, the pool
 * returns unused memory to the GPU, down to its release threshold.
 */
#pragma GCC visibility push(default)
#include "abi/cuda_entry.h"
#pragma GCC visibility pop
#include "null/null_memory.h"

enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT = 5 };

static char pool; /* its address is the handle */
static uint64_t threshold_bytes;

static CUmemoryPool handle(void)
{
	return (CUmemoryPool)(void *)&pool;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	*out = handle();
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	return cuDeviceGetDefaultMemPool(out, ordinal);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool asked, int attribute, void *value)
{
	if (asked != handle() || (attribute != RELEASE_THRESHOLD && attribute != RESERVED_CURRENT))
		return CUDA_ERROR_INVALID_VALUE;
	*(uint64_t *)value = attribute == RESERVED_CURRENT
				 ? null_pool_reserved_bytes()
				 : __atomic_load_n(&threshold_bytes, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool asked, int attribute, void *value)
{
	if (asked != handle() || attribute != RELEASE_THRESHOLD)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_store_n(&threshold_bytes, *(uint64_t *)value, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool asked, size_t keep_bytes)
{
	if (asked != handle())
		return CUDA_ERROR_INVALID_VALUE;
	null_pool_trim(keep_bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	CUcontext current = NULL;

	(void)stream;
	if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*out = null_memory_take(NULL_HEAP_POOL, bytes);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	return null_memory_give(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxSynchronize(void)
{
	null_pool_trim(__atomic_load_n(&threshold_bytes, __ATOMIC_RELAXED));
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	return cuCtxSynchronize();
}
