/*
 * Wrappers of the calls at which the driver gives back what pools and graphs no longer use: when
 * the program asks for it, and when the driver has seen that work is done.
 */
#include "charge/meters.h"
#include "loader/hooks.h"

/* The driver has answered, and may have given memory back before it did: also where it said no, but
 * not where it said that work goes on. */
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
