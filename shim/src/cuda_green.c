/*
 * Green contexts: other ways into a device's primary context, each of which retains it. What is
 * allocated in one is the primary context's, and stays when the green one ends.
 */
#include <stddef.h>

#include "admission.h"
#include "hooks.h"
#include "lives.h"
#include "measure.h"
#include "primary.h"

#define MOST_BYTES (INT64_C(2) << 30)

static void open_in(struct vgpu_window *window, CUcontext primary)
{
	struct vgpu_place place;

	*window = (struct vgpu_window){.place.card = VGPU_CARD_UNMANAGED};
	if (vgpu_place_of_context(primary, &place) == CUDA_SUCCESS)
		vgpu_window_open_by(window, place, primary);
}

static int64_t close_in(struct vgpu_window *window, CUcontext primary, struct vgpu_bounds bounds)
{
	int64_t taken_bytes = 0;

	if (window->open && real_cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS) {
		taken_bytes = vgpu_window_close(window, bounds);
		(void)real_cuCtxPopCurrent_v2(&primary);
	}
	vgpu_window_drop(window);
	return taken_bytes;
}

static CUresult create_in(CUcontext primary, CUgreenCtx *green, void *resources, CUdevice device,
			  unsigned int flags)
{
	const struct vgpu_bounds bounds = {0, MOST_BYTES};
	struct vgpu_window window;
	CUgreenCtx made = NULL;
	CUcontext context;
	CUresult result;

	open_in(&window, primary);
	result = real_cuGreenCtxCreate(&made, resources, device, flags);
	if (result != CUDA_SUCCESS) {
		vgpu_window_drop(&window);
		return result;
	}
	if (real_cuCtxFromGreenCtx(&context, made) == CUDA_SUCCESS)
		vgpu_place_join(context, window.place);
	if (vgpu_took_too_much(&window, close_in(&window, primary, bounds))) {
		(void)cuGreenCtxDestroy(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*green = made;
	return CUDA_SUCCESS;
}

/* The primary context is retained beside, so that it is charged before there is a green one. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned int flags)
{
	CUcontext primary;
	CUresult result;

	if (!green || !resources)
		return real_cuGreenCtxCreate(green, resources, device, flags);
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = create_in(primary, green, resources, device, flags);
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

/* And here, so that its last release is one that is seen. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	const struct vgpu_bounds bounds = {-MOST_BYTES, 0};
	struct vgpu_window window;
	struct vgpu_place place = {0};
	struct vgpu_life life;
	CUcontext context = NULL, primary;
	CUdevice device = -1;
	CUresult result;

	if (green && real_cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS &&
	    vgpu_place_of_context(context, &place) == CUDA_SUCCESS)
		device = vgpu_device_of_primary(place.context);
	if (device < 0 || cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
		return real_cuGreenCtxDestroy(green);
	open_in(&window, primary);
	life = vgpu_place_ending(context);
	result = real_cuGreenCtxDestroy(green);
	vgpu_place_ended(&life, result == CUDA_SUCCESS);
	(void)close_in(&window, primary, bounds);
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}
