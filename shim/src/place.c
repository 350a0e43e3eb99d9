/* See place.h: what is current, asked of the driver; which life, of lives.c; which card, of
 * device_cards.c. */
#include "place.h"

#include "device_cards.h"
#include "hooks.h"
#include "init.h"
#include "lives.h"

/* False: `result` is all there is to say. */
static bool is_managed(struct vgpu_place *place, CUresult *result)
{
	enum vgpu_gate gate = vgpu_gate_use();

	*place = (struct vgpu_place){VGPU_CARD_UNMANAGED, 0};
	*result = gate == VGPU_GATE_SHUT ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
	return gate == VGPU_GATE_MANAGED;
}

/* Before CUDA 13 a context's device is asked of the current context alone. */
static CUresult device_of(CUcontext context, CUdevice *device)
{
	CUcontext current, popped;
	CUresult result;

	if (!context || (real_cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context))
		return real_cuCtxGetDevice(device);
	result = real_cuCtxGetDevice_v2(device, context);
	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	result = real_cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuCtxGetDevice(device);
	(void)real_cuCtxPopCurrent_v2(&popped);
	return result;
}

/* A context that the table does not know; of one that is none, the driver says so. */
static CUresult meet(CUcontext context, struct vgpu_place *place)
{
	CUdevice device;
	CUresult result = device_of(context, &device);

	if (result != CUDA_SUCCESS)
		return result;
	place->card = vgpu_card_of_device(device);
	if (context && place->card != VGPU_CARD_NOT_GRANTED)
		vgpu_lives_begin(context, place);
	return CUDA_SUCCESS;
}

static CUresult find(CUcontext context, struct vgpu_place *place)
{
	if (context && vgpu_lives_known(context, place))
		return CUDA_SUCCESS;
	return meet(context, place);
}

CUresult vgpu_place_current(struct vgpu_place *place)
{
	CUcontext context = NULL;
	CUresult result;

	if (!is_managed(place, &result))
		return result;
	/* Drivers before CUDA 4 have no such call: there a context has no name. */
	result = real_cuCtxGetCurrent(&context);
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
		return result;
	return find(context, place);
}

CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place)
{
	CUresult result;

	if (!context)
		return vgpu_place_current(place);
	return is_managed(place, &result) ? find(context, place) : result;
}

CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place)
{
	CUresult result;

	if (is_managed(place, &result))
		place->card = vgpu_card_of_device(device);
	return result;
}
