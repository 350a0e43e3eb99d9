/*
 * Launches: they occupy the GPU and compute nothing.
 */
#include "graph/graph.h"
#include "module/module.h"

#include <string.h>

#define BLOCK_THREADS_MAX 1024

/* Returns the function's own duration, or the value of the parameter that states it. */
static uint64_t duration_ns(CUfunction handle, void **parameters)
{
	const struct function *function = function_get(handle);
	uint64_t value_ns = function ? function->entry->duration_ns : CODE_UNSTATED;

	if (function && parameters && function->entry->duration_argument != CODE_UNSTATED)
		memcpy(&value_ns, parameters[function->entry->duration_argument], sizeof(value_ns));
	return value_ns;
}

struct work kernel_work(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
	CUfunction function = kernel->func ? kernel->func : (CUfunction)(void *)kernel->kern;

	return (struct work){function, duration_ns(function, kernel->kernelParams)};
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **parameters, void **extra)
{
	struct work work = {.function = function};
	struct context *context;

	(void)shared_bytes, (void)extra;
	TRY(context_enter(NULL, &context));
	work.duration_ns = duration_ns(function, parameters);
	driver_unlock();
	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
	    (uint64_t)block_x * block_y * block_z > BLOCK_THREADS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return work_submit(&work, CU_GRAPH_NODE_TYPE_KERNEL, stream);
}

CUresult cuLaunchCooperativeKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
				   void **parameters)
{
	return cuLaunchKernel(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z,
			      shared_bytes, stream, parameters, NULL);
}

/* Attributes have no effect, because a stream runs its kernels in order. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **parameters,
			  void **extra)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return cuLaunchKernel(handle, config->gridDimX, config->gridDimY, config->gridDimZ,
			      config->blockDimX, config->blockDimY, config->blockDimZ,
			      config->sharedMemBytes, config->hStream, parameters, extra);
}
