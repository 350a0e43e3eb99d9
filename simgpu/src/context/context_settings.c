/*
 * Properties and settings of a context, which are stored and returned. Limits cost memory. The
 * simulated GPU ignores the other settings.
 */
#include "base/driver.h"

bool context_flags_are_good(unsigned int flags)
{
	unsigned int schedule = flags & CU_CTX_SCHED_MASK;

	/* The scheduling flags exclude each other. */
	return !(flags & ~(unsigned int)CU_CTX_FLAGS_MASK) && !(schedule & (schedule - 1));
}

#define NUMBER(function, type, number)                                                             \
	CUresult function(CUcontext handle, type *out)                                             \
	{                                                                                          \
		struct context *context;                                                           \
                                                                                                   \
		TRY(context_enter(handle, &context));                                              \
		if (out)                                                                           \
			*out = number;                                                             \
		return driver_leave(out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);                \
	}

NUMBER(cuCtxGetId, unsigned long long, context->object.serial)
NUMBER(cuCtxGetApiVersion, unsigned int, context->api_version)

CUresult cuCtxGetLimit(size_t *value, int limit)
{
	struct context *context;

	TRY(context_enter(NULL, &context));
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

	TRY(context_enter(NULL, &context));
	if (limit < 0 || limit >= SIM_CONTEXT_LIMITS || (limit == SIM_LIMIT_CIG_ENABLED && value))
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	return driver_leave(overhead_set_limit(context, limit, value));
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *context;

	TRY(context_enter(NULL, &context));
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return driver_leave(CUDA_SUCCESS);
}

/* Sets the calling thread's capture mode, which capture.c uses. */
CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	TRY(driver_enter());
	if (!mode || *mode < 0 || *mode > 2)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*mode = capture_mode_exchange(*mode);
	return driver_leave(CUDA_SUCCESS);
}
