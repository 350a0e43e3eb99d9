/*
 * Hints about managed memory: checked, and without effect. All of it is charged from the start, and
 * lies in the process's own pages.
 */
#include "graph/graph.h"

enum { ADVICE_FIRST = 1, ADVICE_LAST = 6, DEVICE_CPU = -1 };

/* True if all of it lies in one allocation of managed memory. */
static bool is_managed(uint64_t address, size_t bytes)
{
	struct device *device;
	const struct range *range = memory_find(address, &device);

	return range && range->managed && bytes && bytes <= range->bytes - (address - range->base);
}

static CUresult check(uint64_t address, size_t bytes, CUmemLocation location)
{
	struct device *device;

	if (!is_managed(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return device_get(location.id, &device);
	return location.type > CU_MEM_LOCATION_TYPE_DEVICE &&
		       location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_INVALID_VALUE;
}

/* The meaning of a number before CUDA 12.2. */
static CUmemLocation location_of(CUdevice ordinal)
{
	return (CUmemLocation){ordinal == DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
						     : CU_MEM_LOCATION_TYPE_DEVICE,
			       ordinal};
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (advice < ADVICE_FIRST || advice > ADVICE_LAST)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(check(address, bytes, location));
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice ordinal)
{
	return cuMemAdvise_v2(address, bytes, advice, location_of(ordinal));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
			       unsigned int flags, CUstream handle)
{
	struct stream *stream;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = flags ? CUDA_ERROR_INVALID_VALUE : stream_get(handle, &stream);
	if (result == CUDA_SUCCESS)
		result = capture_allows_on(stream);
	return driver_leave(result == CUDA_SUCCESS ? check(address, bytes, location) : result);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice ordinal, CUstream stream)
{
	return cuMemPrefetchAsync_v2(address, bytes, location_of(ordinal), 0, stream);
}
