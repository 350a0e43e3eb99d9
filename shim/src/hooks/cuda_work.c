/* Wrappers of work on the GPU (kernels, copies, sets). Each waits for the container's window.
 * hooks.def lists them. When a synchronous copy returns, earlier work of its stream is done too. */
#include "compute/launch.h"
#include "loader/hooks.h"

/* Work with the same handle and about the same size costs about the same. */
#define WORK(symbol, twin, stream_, handle, size, params, args)                                    \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		CUstream own = vgpu_own_stream(stream_, real == VGPU_ID_##symbol##twin);           \
		struct vgpu_launch launch;                                                         \
		CUresult result;                                                                   \
                                                                                                   \
		vgpu_launch_begin(&launch, own, (uint64_t)(uintptr_t)(handle), size);              \
		result = as_##symbol(real, VGPU_BARE args);                                        \
		vgpu_launch_end(&launch);                                                          \
		return result;                                                                     \
	}

#define HOOK(symbol, library, params, args)
#define CUDA_LAUNCH_HOOK(symbol, base, first, last, stream, size, params, args)                    \
	WORK(symbol, _ptsz, stream, function, size, params, args)
#define CUDA_ASYNC_HOOK(symbol, base, first, last, size, params, args)                             \
	WORK(symbol, _ptsz, stream, &on_##symbol, size, params, args)
/* A set returns before it is done, so its return tells nothing of earlier work. */
#define CUDA_SET_HOOK(symbol, base, first, last, size, params, args)                               \
	WORK(symbol, _ptds, NULL, &on_##symbol, size, params, args)
#define CUDA_COPY_HOOK(symbol, base, first, last, size, params, args)                              \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		CUstream own = vgpu_own_stream(NULL, real == VGPU_ID_##symbol##_ptds);             \
		struct vgpu_launch launch;                                                         \
		uint64_t since_ns;                                                                 \
		CUresult result;                                                                   \
                                                                                                   \
		vgpu_launch_begin(&launch, own, (uint64_t)(uintptr_t)&on_##symbol, size);          \
		since_ns = vgpu_launches_wait_begins();                                            \
		launch.begun_ns = UINT64_MAX; /* the call takes as long as the copy */             \
		result = as_##symbol(real, VGPU_BARE args);                                        \
		vgpu_launch_end(&launch);                                                          \
		vgpu_launches_wait_ended(since_ns, own, false, result == CUDA_SUCCESS);            \
		return result;                                                                     \
	}
#include "loader/hooks.def"

/* The call launches on several GPUs, but waits only for the window on the current GPU. */
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
