/* Wrappers of kernel launches: each waits for the container's turn. */
#include "compute/launch.h"
#include "loader/hooks.h"

/* The number of blocks distinguishes launches of one function. */
#define LAUNCHING(symbol, stream, blocks, params, args)                                            \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		struct vgpu_launch launch;                                                         \
		CUresult result;                                                                   \
                                                                                                   \
		vgpu_launch_begin(&launch,                                                         \
				  vgpu_own_stream(stream, real == VGPU_ID_##symbol##_ptsz),        \
				  (uint64_t)(uintptr_t)function, blocks);                          \
		result = as_##symbol args;                                                         \
		vgpu_launch_end(&launch);                                                          \
		return result;                                                                     \
	}

LAUNCHING(cuLaunchKernel, stream, (uint64_t)grid_x * grid_y * grid_z,
	  (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
	   unsigned int block_x, unsigned int block_y, unsigned int block_z,
	   unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),
	  (real, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
	   parameters, extra))
LAUNCHING(cuLaunchCooperativeKernel, stream, (uint64_t)grid_x * grid_y * grid_z,
	  (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
	   unsigned int block_x, unsigned int block_y, unsigned int block_z,
	   unsigned int shared_bytes, CUstream stream, void **parameters),
	  (real, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
	   parameters))
LAUNCHING(cuLaunchKernelEx, config ? config->hStream : NULL,
	  config ? (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ : 0,
	  (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
	  (real, config, function, parameters, extra))

/* On several GPUs at once: it waits for the current one. */
CUresult cuLaunchCooperativeKernelMultiDevice(void *launches, unsigned int count,
					      unsigned int flags)
{
	struct vgpu_launch launch;
	CUresult result;

	vgpu_launch_begin(&launch, NULL, (uint64_t)(uintptr_t)&cuLaunchCooperativeKernelMultiDevice,
			  0);
	result = real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
	vgpu_launch_end(&launch);
	return result;
}
