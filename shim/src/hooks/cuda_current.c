/* Wrappers of the calls that change a thread's current context, or begin and end captures. */
#include "compute/current.h"
#include "loader/hooks.h"

#define CHANGING(symbol, type)                                                                     \
	CUresult symbol(type context)                                                              \
	{                                                                                          \
		CUresult result = real_##symbol(context);                                          \
                                                                                                   \
		vgpu_current_changed();                                                            \
		return result;                                                                     \
	}

CHANGING(cuCtxSetCurrent, CUcontext)
CHANGING(cuCtxPushCurrent, CUcontext)
CHANGING(cuCtxPushCurrent_v2, CUcontext)
CHANGING(cuCtxPopCurrent, CUcontext *)
CHANGING(cuCtxPopCurrent_v2, CUcontext *)

/* Captures are counted before the driver's call, so that another thread's launch sees the capture
 * at once. If the call failed, correct the count. */
static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		__atomic_sub_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED);
	return result;
}

#define HOOK(symbol, library, params, args)
#define CUDA_CAPTURE_HOOK(symbol, base, first, last, params, args)                                 \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		__atomic_add_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED);                      \
		return begun(as_##symbol(real, VGPU_BARE args));                                   \
	}
#include "loader/hooks.def"

static void end_capture(void)
{
	if (__atomic_sub_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED) < 0)
		__atomic_add_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED);
}

/* End a capture. A call that reports an invalid capture ends it too. A call from a wrong thread
 * does not. If a program destroys the stream of a capture, the capture stays counted, and later
 * launches cost a query of the driver. */
CUresult on_cuStreamEndCapture(enum vgpu_function real, CUstream stream, CUgraph *graph)
{
	CUresult result = as_cuStreamEndCapture(real, stream, graph);

	/* UNMATCHED: another stream began the capture, and the capture continues. */
	if (result == CUDA_SUCCESS || (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
				       result <= CUDA_ERROR_STREAM_CAPTURE_IMPLICIT &&
				       result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED))
		end_capture();
	return result;
}

CUresult on_cuStreamEndCaptureToCig(enum vgpu_function real, CUstream stream)
{
	CUresult result = as_cuStreamEndCaptureToCig(real, stream);

	if (result == CUDA_SUCCESS)
		end_capture();
	return result;
}
