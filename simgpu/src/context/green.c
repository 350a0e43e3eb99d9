/*
 * Green contexts: other handles of a device's primary context, which each retains. They take no
 * further memory of the GPU, and partition no multiprocessors: a descriptor is valid for all.
 */
#include "base/driver.h"

enum { RESOURCE_MULTIPROCESSORS = 1, FLAGS = 1 };

struct green {
	struct object object; /* OBJECT_GREEN */
	struct green_view *view;
};

static struct green *get(CUgreenCtx handle)
{
	return object_get(handle, OBJECT_GREEN);
}

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
	if (!described)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*out = object_handle(described);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult make(CUdevice ordinal, CUgreenCtx *out)
{
	struct green *green = object_new(OBJECT_GREEN, sizeof(*green));
	struct green_view *view = object_new(OBJECT_GREEN_VIEW, sizeof(*view));

	if (green && view) {
		green->view = view;
		view->primary = driver.device[ordinal].primary;
		*out = object_handle(green);
		return CUDA_SUCCESS;
	}
	if (green)
		object_free(green);
	if (view)
		object_free(view);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc described, CUdevice ordinal,
			  unsigned int flags)
{
	CUcontext primary;
	bool known;
	CUresult result;

	TRY(driver_enter());
	known = object_get(described, OBJECT_RESOURCES);
	driver_unlock();
	if (!out || !known || flags & ~(unsigned int)FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cuDevicePrimaryCtxRetain(&primary, ordinal));
	driver_lock();
	result = make(ordinal, out);
	driver_unlock();
	if (result != CUDA_SUCCESS)
		cuDevicePrimaryCtxRelease_v2(ordinal);
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	struct green *green;
	int ordinal;

	TRY(driver_enter());
	green = get(handle);
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
	green = get(handle);
	if (!out || !green)
		return driver_leave(out ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(green->view);
	return driver_leave(CUDA_SUCCESS);
}
