/*
 * Settings of a context: stored and returned. Limits cost memory; the simulated GPU ignores the
 * rest.
 */
#include "base/driver.h"

#include <stddef.h>

bool context_flags_are_good(unsigned int flags)
{
	unsigned int schedule = flags & CU_CTX_SCHED_MASK;

	/* One way of waiting at most. */
	return !(flags & ~(unsigned int)CU_CTX_FLAGS_MASK) && !(schedule & (schedule - 1));
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = context->flags;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!context_flags_are_good(flags))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	context->flags = flags;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (limit < 0 || limit >= SIM_CONTEXT_LIMITS)
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	*value = context->limits[limit];
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (limit < 0 || limit >= SIM_CONTEXT_LIMITS || (limit == SIM_LIMIT_CIG_ENABLED && value))
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	return driver_leave(overhead_set_limit(context, limit, value));
}

static CUresult get_config(int *value, size_t offset)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*value = *(int *)((char *)context + offset);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult set_config(int value, int last, size_t offset)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (value < 0 || value > last)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*(int *)((char *)context + offset) = value;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(int *config)
{
	return get_config(config, offsetof(struct context, cache_config));
}

CUresult cuCtxSetCacheConfig(int config)
{
	return set_config(config, 3, offsetof(struct context, cache_config));
}

CUresult cuCtxGetSharedMemConfig(int *config)
{
	return get_config(config, offsetof(struct context, shared_config));
}

CUresult cuCtxSetSharedMemConfig(int config)
{
	return set_config(config, 2, offsetof(struct context, shared_config));
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	return result == CUDA_SUCCESS ? driver_leave(CUDA_SUCCESS) : result;
}

/* The mode is the calling thread's; capture.c reads it. */
CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode || *mode < 0 || *mode > 2)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*mode = capture_mode_exchange(*mode);
	return driver_leave(CUDA_SUCCESS);
}

/* No simulated GPU has access to another's memory. */
CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags)
{
	struct context *context, *peer;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = context_get(peer_handle, &peer);
	if (result == CUDA_SUCCESS && peer == context)
		result = CUDA_ERROR_INVALID_DEVICE;
	return driver_leave(result == CUDA_SUCCESS ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : result);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_handle)
{
	struct context *context, *peer;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	result = context_get(peer_handle, &peer);
	return driver_leave(result == CUDA_SUCCESS ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : result);
}

/* There is no profiler for them to start and stop. */
CUresult cuProfilerStart(void)
{
	struct context *context;
	CUresult result = context_enter(NULL, &context);

	return result == CUDA_SUCCESS ? driver_leave(CUDA_SUCCESS) : result;
}

CUresult cuProfilerStop(void)
{
	return cuProfilerStart();
}
