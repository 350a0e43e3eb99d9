/* Wrappers of the calls that change a thread's current context, or begin and end captures. */
#include <stdbool.h>
#include <stddef.h>

#include "compute/current.h"
#include "loader/capture_mode.h"
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

enum { NOTED_CAPTURES = 16 };

/* The streams in which open captures began. A new stream may get the handle of one that is still
 * noted here, and is then noted too. A capture that finds no space here stays counted if the
 * program destroys its stream: later launches then cost a query of the driver. */
static CUstream origins[NOTED_CAPTURES];

static bool replace(CUstream from, CUstream to)
{
	for (int i = 0; i < NOTED_CAPTURES; i++) {
		CUstream found = __atomic_load_n(&origins[i], __ATOMIC_RELAXED);

		if (found == from &&
		    __atomic_compare_exchange_n(&origins[i], &found, to, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
	}
	return false;
}

static void end_capture(void)
{
	if (__atomic_sub_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED) < 0)
		__atomic_add_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED);
}

/* Captures are counted before the driver's call, so that another thread's launch sees the capture
 * at once. If the call failed, correct the count. */
static CUresult begun(CUresult result, CUstream stream)
{
	if (result == CUDA_SUCCESS)
		(void)replace(NULL, stream);
	else
		end_capture();
	return result;
}

#define HOOK(symbol, library, params, args)
#define CUDA_CAPTURE_HOOK(symbol, base, first, last, params, args)                                 \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		__atomic_add_fetch(&vgpu_open_captures, 1, __ATOMIC_RELAXED);                      \
		vgpu_capture_begins();                                                             \
		return begun(as_##symbol(real, VGPU_BARE args), stream);                           \
	}
#include "loader/hooks.def"

/* End a capture. A call that reports an invalid capture ends it too. A call from a wrong thread
 * does not. */
CUresult on_cuStreamEndCapture(enum vgpu_function real, CUstream stream, CUgraph *graph)
{
	CUresult result = as_cuStreamEndCapture(real, stream, graph);

	/* UNMATCHED: another stream began the capture, and the capture continues. */
	if (result == CUDA_SUCCESS || (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
				       result <= CUDA_ERROR_STREAM_CAPTURE_IMPLICIT &&
				       result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)) {
		(void)replace(stream, NULL);
		end_capture();
	}
	return result;
}

CUresult on_cuStreamEndCaptureToCig(enum vgpu_function real, CUstream stream)
{
	CUresult result = as_cuStreamEndCaptureToCig(real, stream);

	if (result == CUDA_SUCCESS) {
		(void)replace(stream, NULL);
		end_capture();
	}
	return result;
}

/* A capture ends with the stream in which it began. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult result = real_cuStreamDestroy_v2(stream);

	if (result == CUDA_SUCCESS && replace(stream, NULL))
		end_capture();
	return result;
}
