/* Wrappers of green contexts. A green context is a further handle of the device's primary context,
 * which it retains. Memory that is allocated in a green context belongs to the primary context, and
 * remains when the green context ends. */
#include <stddef.h>

#include "charge/contexts.h"
#include "charge/generations.h"
#include "charge/place.h"
#include "loader/hooks.h"

/* Retain the primary context during the call, so that it is charged before the green context
 * exists. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned int flags)
{
	struct vgpu_place place;
	CUcontext primary, context;
	CUresult result;

	if (!green || !resources)
		return real_cuGreenCtxCreate(green, resources, device, flags);
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuGreenCtxCreate(green, resources, device, flags);
	if (result == CUDA_SUCCESS && real_cuCtxFromGreenCtx(&context, *green) == CUDA_SUCCESS &&
	    vgpu_place_of_context(primary, &place) == CUDA_SUCCESS)
		vgpu_generation_join(context, place);
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

/* Retain the primary context during the call, so that its last release is one that this library
 * makes and sees. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext context = NULL, primary;
	struct vgpu_place place;
	CUdevice device = -1;
	CUresult result;

	if (green && real_cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS &&
	    vgpu_generation_known(context, &place))
		device = vgpu_device_of_primary(place.context);
	if (device < 0 || cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
		return real_cuGreenCtxDestroy(green);
	/* Remove the handle before the call, because the driver may reuse it at once. */
	vgpu_generation_part(context);
	result = real_cuGreenCtxDestroy(green);
	if (result != CUDA_SUCCESS)
		vgpu_generation_join(context, place);
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}
