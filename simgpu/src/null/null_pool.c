/*
 * Stream-ordered memory: one pool, the device's default. A stream's work is done when it is
 * submitted, so what is freed can be used again at once; the pool returns it to the GPU at the next
 * synchronisation, down to its release threshold.
 */
#include "null/null_driver.h"

enum {
	RELEASE_THRESHOLD = 4,
	RESERVED_CURRENT = 5,
	RESERVED_HIGH = 6,
	USED_CURRENT = 7,
	USED_HIGH = 8,
	REUSE_FIRST = 1,
	REUSE_LAST = 3,
};

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

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool chosen)
{
	return ordinal || chosen != handle() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool asked, int attribute, void *value)
{
	if (asked != handle() || !value)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute >= REUSE_FIRST && attribute <= REUSE_LAST)
		*(int *)value = 1;
	else if (attribute == RELEASE_THRESHOLD)
		*(uint64_t *)value = __atomic_load_n(&threshold_bytes, __ATOMIC_RELAXED);
	else if (attribute == RESERVED_CURRENT || attribute == RESERVED_HIGH)
		*(uint64_t *)value = null_pool_reserved_bytes();
	else if (attribute == USED_CURRENT || attribute == USED_HIGH)
		*(uint64_t *)value = null_pool_used_bytes();
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool asked, int attribute, void *value)
{
	if (asked != handle() || !value || attribute != RELEASE_THRESHOLD)
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

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool chosen,
				 CUstream stream)
{
	CUresult result = null_may_allocate(out, bytes);
	uint64_t address;

	(void)stream;
	if (result != CUDA_SUCCESS)
		return result;
	if (chosen != handle())
		return CUDA_ERROR_INVALID_VALUE;
	address = null_memory_take(NULL_HEAP_POOL, bytes);
	if (!address)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = address;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return cuMemAllocFromPoolAsync(out, bytes, handle(), stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	null_take_time();
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

#define NULL_ALIAS(symbol, suffix, since, params)                                                  \
	CUresult symbol##suffix params __attribute__((alias(#symbol)));
NULL_POOL_TWINS(NULL_ALIAS)
#undef NULL_ALIAS
