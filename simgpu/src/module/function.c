/*
 * Queries and settings of a function before it is launched.
 *
 * The numbers are those of a small kernel: 32 registers, no static shared memory.
 */
#include "module/module.h"

#define REGISTERS_PER_THREAD 32
#define SHARED_BYTES_DEFAULT 49152

enum {
	DEVICE_SHARED_PER_MULTIPROCESSOR = 81,
	DEVICE_SHARED_PER_BLOCK_OPTIN = 97,
	DEVICE_BLOCKS_PER_MULTIPROCESSOR = 106,
	DEVICE_RESERVED_SHARED_PER_BLOCK = 111,
	DEVICE_THREADS_PER_MULTIPROCESSOR = 39,
	DEVICE_MULTIPROCESSORS = 16,
	DEVICE_THREADS_PER_BLOCK = 1,
};

enum {
	FUNCTION_MAX_THREADS,
	FUNCTION_SHARED_BYTES,
	FUNCTION_CONST_BYTES,
	FUNCTION_LOCAL_BYTES,
	FUNCTION_REGISTERS,
	FUNCTION_PTX_VERSION,
	FUNCTION_BINARY_VERSION,
	FUNCTION_CACHE_MODE,
	FUNCTION_MAX_DYNAMIC_SHARED,
	FUNCTION_CARVEOUT,
	FUNCTION_CLUSTER_FIRST,
	FUNCTION_CLUSTER_LAST = 15,
	FUNCTION_DEVICE_NODE_UPDATE = 16, /* not supported: 0 */
	FUNCTION_LAST = FUNCTION_DEVICE_NODE_UPDATE,
};

struct function *function_get(const void *handle)
{
	struct function *function = object_get(handle, OBJECT_FUNCTION);

	return function ? function : object_get(handle, OBJECT_KERNEL);
}

static int of_device(const struct device *device, int attribute)
{
	int value = 0;

	device_attribute(device, attribute, &value);
	return value;
}

CUresult function_attribute(const struct function *function, const struct device *device,
			    int attribute, int *value)
{
	const int capability =
	    (int)(10 * device->gpu->capability_major + device->gpu->capability_minor);
	const int rows[FUNCTION_LAST + 1] = {
	    [FUNCTION_MAX_THREADS] = of_device(device, DEVICE_THREADS_PER_BLOCK),
	    [FUNCTION_LOCAL_BYTES] = (int)function->entry->local_bytes,
	    [FUNCTION_REGISTERS] = REGISTERS_PER_THREAD,
	    [FUNCTION_PTX_VERSION] = (int)function->ptx->target,
	    [FUNCTION_BINARY_VERSION] = capability,
	    [FUNCTION_MAX_DYNAMIC_SHARED] = function->dynamic_shared_bytes
						? function->dynamic_shared_bytes
						: SHARED_BYTES_DEFAULT,
	    [FUNCTION_CARVEOUT] = function->carveout_percent,
	};

	if (attribute < 0 || attribute > FUNCTION_LAST)
		return CUDA_ERROR_INVALID_VALUE;
	*value = rows[attribute];
	return CUDA_SUCCESS;
}

CUresult function_set_attribute(struct function *function, int attribute, int value)
{
	if (attribute == FUNCTION_MAX_DYNAMIC_SHARED && value >= 0 &&
	    value <= of_device(&driver.device[0], DEVICE_SHARED_PER_BLOCK_OPTIN))
		function->dynamic_shared_bytes = value;
	else if (attribute == FUNCTION_CARVEOUT && value >= -1 && value <= 100)
		function->carveout_percent = value;
	else if (attribute >= FUNCTION_CLUSTER_FIRST && attribute <= FUNCTION_CLUSTER_LAST)
		return CUDA_ERROR_NOT_SUPPORTED;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult enter(CUfunction handle, const void *out, struct function **function,
		      struct context **context)
{
	CUresult result = context_enter(NULL, context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*function = function_get(handle);
	return *function ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, value, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(function_attribute(function, context->device, attribute, value));
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *bytes)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, offset, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (index >= function->entry->parameter_count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*offset = function->entry->parameters[index].offset;
	if (bytes)
		*bytes = function->entry->parameters[index].bytes;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncLoad(CUfunction handle)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, &function, &function, &context);

	return result == CUDA_SUCCESS ? driver_leave(function_load(function, context)) : result;
}

CUresult cuFuncIsLoaded(int *state, CUfunction handle)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, state, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*state = function->module && function->module->loaded;
	return driver_leave(CUDA_SUCCESS);
}

int resident_blocks(const struct device *device, int threads, size_t shared_bytes)
{
	size_t shared_most = (size_t)of_device(device, DEVICE_SHARED_PER_MULTIPROCESSOR);
	int warps = (threads + 31) / 32;
	int blocks = of_device(device, DEVICE_THREADS_PER_MULTIPROCESSOR) / 32 / warps;
	int most = of_device(device, DEVICE_BLOCKS_PER_MULTIPROCESSOR);
	size_t each = shared_bytes + (size_t)of_device(device, DEVICE_RESERVED_SHARED_PER_BLOCK);
	size_t fit = shared_bytes <= shared_most ? shared_most / each : 0;

	blocks = blocks < most ? blocks : most;
	return (size_t)blocks < fit ? blocks : (int)fit;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle,
							      int threads, size_t shared_bytes,
							      unsigned int flags)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, blocks, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (threads <= 0 || flags > 1)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*blocks = threads > of_device(context->device, DEVICE_THREADS_PER_BLOCK)
		      ? 0
		      : resident_blocks(context->device, threads, shared_bytes);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads,
						     size_t shared_bytes)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads,
								    shared_bytes, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle,
						   CUoccupancyB2DSize shared_of_block,
						   size_t shared_bytes, int limit,
						   unsigned int flags)
{
	struct function *function;
	struct context *context;
	const struct device *device;
	int best = 0, most;
	CUresult result = enter(handle, grid && block ? grid : NULL, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	device = context->device;
	driver_unlock();
	most = of_device(device, DEVICE_THREADS_PER_BLOCK);
	if (flags > 1 || limit < 0)
		return CUDA_ERROR_INVALID_VALUE;
	most = limit && limit < most ? limit : most;
	/* The largest number of resident threads wins; among equals the larger block, as on the
	 * real driver. */
	for (int size = most; size > 0; size -= size % 32 ? size % 32 : 32) {
		size_t bytes = shared_of_block ? shared_of_block(size) : shared_bytes;
		int blocks = resident_blocks(device, size, bytes);

		if (blocks * size > best) {
			best = blocks * size;
			*block = size;
			*grid = blocks * of_device(device, DEVICE_MULTIPROCESSORS);
		}
	}
	return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
					  CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
					  int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of_block,
							 shared_bytes, limit, 0);
}
