/* See visit.h. */
#include "visit.h"

#include <stdint.h>

#include "hooks.h"

enum { STREAM_PER_THREAD = 2 };

bool vgpu_is_stream_of_any(CUstream stream)
{
	return (uintptr_t)stream <= STREAM_PER_THREAD;
}

struct vgpu_visit vgpu_visit_context(CUcontext context)
{
	CUcontext current = NULL;
	bool elsewhere =
	    context && real_cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context;

	return (struct vgpu_visit){elsewhere && real_cuCtxPushCurrent_v2(context) == CUDA_SUCCESS};
}

struct vgpu_visit vgpu_visit_stream(CUstream stream)
{
	CUcontext context = NULL;

	if (vgpu_is_stream_of_any(stream) || real_cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
		context = NULL;
	return vgpu_visit_context(context);
}

void vgpu_visit_end(struct vgpu_visit visit)
{
	CUcontext context;

	if (visit.pushed)
		(void)real_cuCtxPopCurrent_v2(&context);
}
