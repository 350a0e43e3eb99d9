/*
 * Launches of the interface before CUDA 4, where the function has the block's shape, and one launch
 * on each of several GPUs. Parameters of the old calls (cuParamSet...) are not simulated: a
 * function that has any is refused.
 */
#include "module/module.h"

#define MULTI_FLAGS 3u

CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z)
{
	struct function *function;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	function = function_get(handle);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (x <= 0 || y <= 0 || z <= 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	function->block[0] = (unsigned int)x;
	function->block[1] = (unsigned int)y;
	function->block[2] = (unsigned int)z;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream)
{
	unsigned int block[3] = {0};
	struct function *function;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	function = function_get(handle);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	for (int i = 0; i < 3; i++)
		block[i] = function->block[i];
	driver_unlock();
	return cuLaunchKernel(handle, (unsigned int)width, (unsigned int)height, 1, block[0],
			      block[1], block[2], 0, stream, NULL, NULL);
}

CUresult cuLaunchGrid(CUfunction handle, int width, int height)
{
	return cuLaunchGridAsync(handle, width, height, NULL);
}

CUresult cuLaunch(CUfunction handle)
{
	return cuLaunchGrid(handle, 1, 1);
}

/* In the context of its stream, which is not a default stream. */
static CUresult launch_one(const CUDA_LAUNCH_PARAMS *one)
{
	CUcontext context;
	CUresult result;

	if (!one->hStream || one->hStream == CU_STREAM_LEGACY ||
	    one->hStream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuStreamGetCtx(one->hStream, &context);
	if (result == CUDA_SUCCESS)
		result = cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuLaunchCooperativeKernel(
	    one->function, one->gridDimX, one->gridDimY, one->gridDimZ, one->blockDimX,
	    one->blockDimY, one->blockDimZ, one->sharedMemBytes, one->hStream, one->kernelParams);
	cuCtxPopCurrent_v2(NULL);
	return result;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
					      unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!launches || !count || count > (unsigned int)driver.devices || flags & ~MULTI_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
		result = launch_one(&launches[i]);
	return result;
}
