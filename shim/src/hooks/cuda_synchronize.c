/*
 * Wrappers of the calls at which the driver releases what pools and graphs no longer use: at the
 * program's request, and when the driver has observed that work is complete.
 */
#include "charge/meters.h"
#include "loader/hooks.h"

/* The driver may have released memory before it answered: also if it refused, but not if it
 * reported that work continues. */
static CUresult after(CUresult result)
{
	if (result != CUDA_ERROR_NOT_READY)
		vgpu_meters_read();
	return result;
}

#define GIVING_BACK(symbol, params, args)                                                          \
	CUresult symbol params                                                                     \
	{                                                                                          \
		return after(real_##symbol args);                                                  \
	}

GIVING_BACK(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes), (pool, keep_bytes))
GIVING_BACK(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value),
	    (pool, attribute, value))
GIVING_BACK(cuEventSynchronize, (CUevent event), (event))
GIVING_BACK(cuEventQuery, (CUevent event), (event))
GIVING_BACK(cuCtxSynchronize, (void), ())
GIVING_BACK(cuCtxSynchronize_v2, (CUcontext context), (context))

CUresult on_cuStreamSynchronize(enum vgpu_function real, CUstream stream)
{
	return after(as_cuStreamSynchronize(real, stream));
}

CUresult on_cuStreamQuery(enum vgpu_function real, CUstream stream)
{
	return after(as_cuStreamQuery(real, stream));
}
