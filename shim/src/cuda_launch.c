/*
 * Launches. The first one of a function may load its code and make room for its local memory: that
 * is asked for before, in first.c. Every other one costs a look into a table.
 */
#include "first.h"
#include "hooks.h"
#include "seen.h"

static CUstream stream_of(const CUlaunchConfig *config)
{
	return config ? config->stream : NULL;
}

CUresult on_cuLaunchKernel(enum vgpu_function real, CUfunction function, unsigned int grid_x,
			   unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
			   unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			   CUstream stream, void **parameters, void **extra)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchKernel(real, function, grid_x, grid_y, grid_z, block_x, block_y,
					 block_z, shared_bytes, stream, parameters, extra);
	result = vgpu_first_begin(&first, function,
				  vgpu_own_stream(real, VGPU_ID_cuLaunchKernel_ptsz, stream));
	if (result != CUDA_SUCCESS)
		return result;
	result = as_cuLaunchKernel(real, function, grid_x, grid_y, grid_z, block_x, block_y,
				   block_z, shared_bytes, stream, parameters, extra);
	return vgpu_first_end(&first, result);
}

CUresult on_cuLaunchKernelEx(enum vgpu_function real, const CUlaunchConfig *config,
			     CUfunction function, void **parameters, void **extra)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchKernelEx(real, config, function, parameters, extra);
	result = vgpu_first_begin(
	    &first, function,
	    vgpu_own_stream(real, VGPU_ID_cuLaunchKernelEx_ptsz, stream_of(config)));
	if (result != CUDA_SUCCESS)
		return result;
	result = as_cuLaunchKernelEx(real, config, function, parameters, extra);
	return vgpu_first_end(&first, result);
}

CUresult on_cuLaunchCooperativeKernel(enum vgpu_function real, CUfunction function,
				      unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				      unsigned int block_x, unsigned int block_y,
				      unsigned int block_z, unsigned int shared_bytes,
				      CUstream stream, void **parameters)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchCooperativeKernel(real, function, grid_x, grid_y, grid_z, block_x,
						    block_y, block_z, shared_bytes, stream,
						    parameters);
	result =
	    vgpu_first_begin(&first, function,
			     vgpu_own_stream(real, VGPU_ID_cuLaunchCooperativeKernel_ptsz, stream));
	if (result != CUDA_SUCCESS)
		return result;
	result = as_cuLaunchCooperativeKernel(real, function, grid_x, grid_y, grid_z, block_x,
					      block_y, block_z, shared_bytes, stream, parameters);
	return vgpu_first_end(&first, result);
}

/* The calls of before CUDA 4, where a function's shape and parameters are part of it. */
CUresult cuLaunch(CUfunction function)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunch(function);
	result = vgpu_first_begin(&first, function, NULL);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuLaunch(function);
	return vgpu_first_end(&first, result);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunchGrid(function, width, height);
	result = vgpu_first_begin(&first, function, NULL);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuLaunchGrid(function, width, height);
	return vgpu_first_end(&first, result);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	struct vgpu_first first;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunchGridAsync(function, width, height, stream);
	result = vgpu_first_begin(&first, function, stream);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuLaunchGridAsync(function, width, height, stream);
	return vgpu_first_end(&first, result);
}

/* One launch on each of several devices: the code of each ahead, in its stream's context; of the
 * rest what the first takes is measured. */
static CUresult load_others_ahead(const CUDA_LAUNCH_PARAMS *launches, unsigned int count)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned int i = 1; result == CUDA_SUCCESS && i < count; i++) {
		struct vgpu_visit visit = vgpu_visit_stream(launches[i].stream);
		CUfunction function = launches[i].function;
		if (!vgpu_seen(function))
			result = vgpu_load_ahead(&function);
		vgpu_visit_end(visit);
	}
	return result;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
					      unsigned int flags)
{
	struct vgpu_first first;
	struct vgpu_visit visit;
	CUresult result;

	if (!launches || !count)
		return real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
	result = load_others_ahead(launches, count);
	if (result != CUDA_SUCCESS)
		return result;
	if (vgpu_seen(launches->function))
		return real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
	visit = vgpu_visit_stream(launches->stream);
	result = vgpu_first_begin(&first, launches->function, launches->stream);
	if (result == CUDA_SUCCESS)
		result = vgpu_first_end(
		    &first, real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags));
	vgpu_visit_end(visit);
	return result;
}
