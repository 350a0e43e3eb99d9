/*
 * Queries and settings of a function. The only memory that a function uses is local memory.
 */
#include "module/module.h"

enum { FUNCTION_LOCAL_BYTES = 3, FUNCTION_LAST = 16 };

struct function *function_get(const void *handle)
{
	struct function *function = object_get(handle, OBJECT_FUNCTION);

	return function ? function : object_get(handle, OBJECT_KERNEL);
}

static CUresult enter(CUfunction handle, const void *out, struct function **function)
{
	struct context *context;

	TRY(context_enter(NULL, &context));
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*function = function_get(handle);
	return *function ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
	struct function *function;

	TRY(enter(handle, value, &function));
	if (attribute < 0 || attribute > FUNCTION_LAST)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*value = attribute == FUNCTION_LOCAL_BYTES ? (int)function->entry->local_bytes : 0;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel handle, CUdevice ordinal)
{
	(void)ordinal;
	return cuFuncGetAttribute(value, attribute, (CUfunction)(void *)handle);
}

/* Always returns one block, because kernels run one after the other. */
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle,
							      int threads, size_t shared_bytes,
							      unsigned int flags)
{
	struct function *function;

	(void)shared_bytes;
	TRY(enter(handle, blocks, &function));
	if (threads <= 0 || flags > 1)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*blocks = 1;
	return driver_leave(CUDA_SUCCESS);
}

/* Settings have no effect. */
CUresult cuKernelSetAttribute(int attribute, int value, CUkernel handle, CUdevice ordinal)
{
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	if (attribute < 0 || attribute > FUNCTION_LAST || value < -1)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(object_get(handle, OBJECT_KERNEL) ? CUDA_SUCCESS
							      : CUDA_ERROR_INVALID_HANDLE);
}
