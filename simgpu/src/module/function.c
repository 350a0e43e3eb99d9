/*
 * Queries and settings of a function before it is launched.
 *
 * The numbers are those of a small kernel: 32 registers, no static shared memory.
 */
#include "module/module.h"

#define REGISTERS_PER_THREAD 32
#define SHARED_BYTES_DEFAULT 49152
#define THREADS_MOST	     1024

enum {
	DEVICE_THREADS_PER_MULTIPROCESSOR = 39,
	DEVICE_SHARED_PER_MULTIPROCESSOR = 81,
	DEVICE_SHARED_PER_BLOCK_OPTIN = 97,
	DEVICE_BLOCKS_PER_MULTIPROCESSOR = 106,
	DEVICE_RESERVED_SHARED_PER_BLOCK = 111,
};

enum {
	FUNCTION_MAX_THREADS,
	FUNCTION_LOCAL_BYTES = 3,
	FUNCTION_REGISTERS,
	FUNCTION_PTX_VERSION,
	FUNCTION_BINARY_VERSION,
	FUNCTION_MAX_DYNAMIC_SHARED = 8,
	FUNCTION_CARVEOUT,
	FUNCTION_LAST = 16,
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

CUresult function_set_attribute(struct function *function, int attribute, int value)
{
	if (attribute == FUNCTION_MAX_DYNAMIC_SHARED && value >= 0 &&
	    value <= of_device(&driver.device[0], DEVICE_SHARED_PER_BLOCK_OPTIN))
		function->dynamic_shared_bytes = value;
	else if (attribute == FUNCTION_CARVEOUT && value >= -1 && value <= 100)
		function->carveout_percent = value;
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

CUresult function_attribute(const struct function *function, const struct device *device,
			    int attribute, int *value)
{
	const int capability =
	    (int)(10 * device->gpu->capability_major + device->gpu->capability_minor);
	const int rows[FUNCTION_LAST + 1] = {
	    [FUNCTION_MAX_THREADS] = THREADS_MOST,
	    [FUNCTION_LOCAL_BYTES] = (int)function->entry->local_bytes,
	    [FUNCTION_REGISTERS] = REGISTERS_PER_THREAD,
	    [FUNCTION_PTX_VERSION] = capability,
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

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	struct function *function;
	struct context *context;
	CUresult result = enter(handle, value, &function, &context);

	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(function_attribute(function, context->device, attribute, value));
}

/* Limited by threads and shared memory. */
static int resident_blocks(const struct device *device, int threads, size_t shared_bytes)
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
	*blocks =
	    threads > THREADS_MOST ? 0 : resident_blocks(context->device, threads, shared_bytes);
	return driver_leave(CUDA_SUCCESS);
}
