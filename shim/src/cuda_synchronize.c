/*
 * Wrappers of the calls at which the driver gives back what pools and graphs no longer use, and
 * what was freed in stream order: when it is told to, and when it learns that work is done.
 */
#include "hooks.h"
#include "meter.h"
#include "stream_frees.h"

/* The driver has spoken, and may have given memory back before it did. */
static CUresult after(CUresult result)
{
	vgpu_settle_frees();
	vgpu_meters_read();
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	return after(real_cuMemPoolTrimTo(pool, keep_bytes));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	return after(real_cuMemPoolSetAttribute(pool, attribute, value));
}

CUresult on_cuStreamSynchronize(enum vgpu_function real, CUstream stream)
{
	return after(as_cuStreamSynchronize(real, stream));
}

CUresult on_cuStreamQuery(enum vgpu_function real, CUstream stream)
{
	CUresult result = as_cuStreamQuery(real, stream);

	return result == CUDA_SUCCESS ? after(result) : result;
}

CUresult cuEventSynchronize(CUevent event)
{
	return after(real_cuEventSynchronize(event));
}

CUresult cuEventQuery(CUevent event)
{
	CUresult result = real_cuEventQuery(event);

	return result == CUDA_SUCCESS ? after(result) : result;
}

CUresult cuCtxSynchronize(void)
{
	return after(real_cuCtxSynchronize());
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	return after(real_cuCtxSynchronize_v2(context));
}
