/*
 * Launches. The first one of a function may load its code and make room for its local memory; that
 * is measured, and charged whatever the limit says, for it cannot be undone. Every other one costs
 * a look into a table.
 */
#include "hooks.h"
#include "measure.h"
#include "seen.h"

enum { FUNCTION_LOCAL_BYTES = 3 };

#define UNKNOWN_LOCAL_BYTES (INT64_C(512) << 20)

/* A library's whole code and variables may come with the first of its functions; local memory is
 * for every thread that the card can run at once. */
static struct vgpu_bounds needs_of(CUfunction function)
{
	struct vgpu_bounds needs = vgpu_code_taken;
	int local_bytes = 0;
	int64_t threads = (int64_t)vgpu_resident_threads();

	if (!threads ||
	    real_cuFuncGetAttribute(&local_bytes, FUNCTION_LOCAL_BYTES, function) != CUDA_SUCCESS)
		needs.most_bytes += UNKNOWN_LOCAL_BYTES;
	else
		needs.most_bytes += local_bytes * threads;
	return needs;
}

static __attribute__((noinline, cold)) void launched_first(CUfunction function, CUresult result,
							   struct vgpu_window *window)
{
	if (result == CUDA_SUCCESS)
		vgpu_see(function);
	vgpu_window_close(window, needs_of(function));
}

CUresult on_cuLaunchKernel(enum vgpu_function real, CUfunction function, unsigned int grid_x,
			   unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
			   unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			   CUstream stream, void **parameters, void **extra)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchKernel(real, function, grid_x, grid_y, grid_z, block_x, block_y,
					 block_z, shared_bytes, stream, parameters, extra);
	vgpu_window_open(&window);
	result = as_cuLaunchKernel(real, function, grid_x, grid_y, grid_z, block_x, block_y,
				   block_z, shared_bytes, stream, parameters, extra);
	launched_first(function, result, &window);
	return result;
}

CUresult on_cuLaunchKernelEx(enum vgpu_function real, const void *config, CUfunction function,
			     void **parameters, void **extra)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchKernelEx(real, config, function, parameters, extra);
	vgpu_window_open(&window);
	result = as_cuLaunchKernelEx(real, config, function, parameters, extra);
	launched_first(function, result, &window);
	return result;
}

CUresult on_cuLaunchCooperativeKernel(enum vgpu_function real, CUfunction function,
				      unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				      unsigned int block_x, unsigned int block_y,
				      unsigned int block_z, unsigned int shared_bytes,
				      CUstream stream, void **parameters)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return as_cuLaunchCooperativeKernel(real, function, grid_x, grid_y, grid_z, block_x,
						    block_y, block_z, shared_bytes, stream,
						    parameters);
	vgpu_window_open(&window);
	result = as_cuLaunchCooperativeKernel(real, function, grid_x, grid_y, grid_z, block_x,
					      block_y, block_z, shared_bytes, stream, parameters);
	launched_first(function, result, &window);
	return result;
}

/* The calls of before CUDA 4, where a function's shape and parameters are part of it. */
CUresult cuLaunch(CUfunction function)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunch(function);
	vgpu_window_open(&window);
	result = real_cuLaunch(function);
	launched_first(function, result, &window);
	return result;
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunchGrid(function, width, height);
	vgpu_window_open(&window);
	result = real_cuLaunchGrid(function, width, height);
	launched_first(function, result, &window);
	return result;
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	struct vgpu_window window;
	CUresult result;

	if (vgpu_seen(function))
		return real_cuLaunchGridAsync(function, width, height, stream);
	vgpu_window_open(&window);
	result = real_cuLaunchGridAsync(function, width, height, stream);
	launched_first(function, result, &window);
	return result;
}

/* One launch on each of several devices: of those the current context's is measured. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
					      unsigned int flags)
{
	struct vgpu_window window;
	CUresult result;

	if (!launches || !count || vgpu_seen(launches->function))
		return real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
	vgpu_window_open(&window);
	result = real_cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
	launched_first(launches->function, result, &window);
	return result;
}
