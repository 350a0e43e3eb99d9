/*
 * Green contexts: further handles of a device's primary context. Each handle retains the context.
 * An event of one cannot be recorded in a stream of another, or of the primary context itself.
 * They take no GPU memory. Each has all multiprocessors, because these are not partitioned.
 */
#include "base/driver.h"

enum { RESOURCE_MULTIPROCESSORS = 1, FLAGS = 1 };

struct green {
	struct object object; /* OBJECT_GREEN */
	struct green_view *view;
};

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, int type)
{
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	if (!resource || type != RESOURCE_MULTIPROCESSORS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*resource = (CUdevResource){.type = type, .smCount = device->gpu->multiprocessors};
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
				   unsigned int count)
{
	struct object *described;

	TRY(driver_enter());
	if (!out || !resources || count != 1 || resources->type != RESOURCE_MULTIPROCESSORS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	described = object_new(OBJECT_RESOURCES, sizeof(*described));
	*out = object_handle(described);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc described, CUdevice ordinal,
			  unsigned int flags)
{
	struct green *green;
	CUcontext primary;
	bool known;

	TRY(driver_enter());
	known = object_get(described, OBJECT_RESOURCES);
	driver_unlock();
	if (!out || !known || flags & ~(unsigned int)FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cuDevicePrimaryCtxRetain(&primary, ordinal));
	driver_lock();
	green = object_new(OBJECT_GREEN, sizeof(*green));
	green->view = object_new(OBJECT_GREEN_VIEW, sizeof(*green->view));
	green->view->primary = driver.device[ordinal].primary;
	*out = object_handle(green);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	struct green *green;
	int ordinal;

	TRY(driver_enter());
	green = object_get(handle, OBJECT_GREEN);
	if (!green)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	ordinal = green->view->primary->device->ordinal;
	object_free(green->view);
	object_free(green);
	driver_unlock();
	return cuDevicePrimaryCtxRelease_v2(ordinal);
}

CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
	struct green *green;

	TRY(driver_enter());
	green = object_get(handle, OBJECT_GREEN);
	if (!out || !green)
		return driver_leave(out ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(green->view);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned int flags, int priority)
{
	struct green *green;

	(void)priority;
	TRY(driver_enter());
	green = object_get(handle, OBJECT_GREEN);
	if (!out || !green || flags != CU_STREAM_NON_BLOCKING)
		return driver_leave(out && !green ? CUDA_ERROR_INVALID_CONTEXT
						  : CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(stream_new(green->view->primary, flags, green->view->object.serial));
	return driver_leave(CUDA_SUCCESS);
}
