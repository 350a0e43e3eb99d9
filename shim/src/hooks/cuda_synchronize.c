/* Wrappers of the calls in which the driver may release unused memory of pools and graphs. Some
 * request it. In the others the driver sees that work is complete. */
#include <stdbool.h>

#include "charge/meters.h"
#include "compute/launch.h"
#include "loader/hooks.h"

/* Read the meters, because the driver may have released memory, even in a call that failed. If the
 * call reports unfinished work, nothing was released. */
static CUresult after(CUresult result, const void *handle)
{
	if (result == CUDA_ERROR_NOT_READY)
		vgpu_launches_continue();
	else
		vgpu_meters_read(handle);
	return result;
}

#define RELEASING(symbol, params, args, handle)                                                    \
	CUresult symbol params                                                                     \
	{                                                                                          \
		return after(real_##symbol args, handle);                                          \
	}

RELEASING(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes), (pool, keep_bytes), NULL)
RELEASING(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value),
	  (pool, attribute, value), NULL)
RELEASING(cuEventQuery, (CUevent event), (event), event)

/* The stream of value 0 has a handle too. */
#define HANDLE_OF(own) ((own) ? (const void *)(own) : (const void *)&after)

/* Matches no stream. */
#define VGPU_NO_STREAM ((CUstream) & cuEventSynchronize)

/* Finish a call that waited for work: the work ended just now. */
static CUresult waited(CUresult result, uint64_t since_ns, CUstream stream, bool all,
		       const void *handle)
{
	vgpu_launches_wait_ended(since_ns, stream, all, result == CUDA_SUCCESS);
	return after(result, handle);
}

/* The event's stream is unknown. Only markers show which work has ended. */
CUresult cuEventSynchronize(CUevent event)
{
	uint64_t since_ns = vgpu_launches_wait_begins();
	CUresult result = real_cuEventSynchronize(event);

	return waited(result, since_ns, VGPU_NO_STREAM, false, event);
}

CUresult cuCtxSynchronize(void)
{
	uint64_t since_ns = vgpu_launches_wait_begins();
	CUresult result = real_cuCtxSynchronize();

	return waited(result, since_ns, NULL, true, &waited);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	uint64_t since_ns = vgpu_launches_wait_begins();
	CUresult result = real_cuCtxSynchronize_v2(context);
	CUcontext current = NULL;

	if (context && since_ns)
		(void)real_cuCtxGetCurrent(&current);
	return waited(result, since_ns, VGPU_NO_STREAM, context == current, &waited);
}

CUresult on_cuStreamSynchronize(enum vgpu_function real, CUstream stream)
{
	CUstream own = vgpu_own_stream(stream, real == VGPU_ID_cuStreamSynchronize_ptsz);
	uint64_t since_ns = vgpu_launches_wait_begins();
	CUresult result = as_cuStreamSynchronize(real, stream);

	return waited(result, since_ns, own, false, HANDLE_OF(own));
}

CUresult on_cuStreamQuery(enum vgpu_function real, CUstream stream)
{
	CUstream own = vgpu_own_stream(stream, real == VGPU_ID_cuStreamQuery_ptsz);

	return after(as_cuStreamQuery(real, stream), HANDLE_OF(own));
}
