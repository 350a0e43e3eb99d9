/*
 * Contexts end, and what they hold goes with them: each way to end one, and what it means to its
 * charges.
 *
 * A life lasts until the driver has ended it: most releases and detachments end nothing, and an end
 * may be refused, while other threads allocate. What is created in between under the same handle is
 * another life (place.h); a primary context nobody retains in between.
 */
#include <stdbool.h>

#include "admission.h"
#include "claims.h"
#include "hooks.h"
#include "lives.h"
#include "lock.h"
#include "measure.h"
#include "meter.h"
#include "place.h"
#include "primary.h"
#include "seen.h"
#include "stream_frees.h"

enum { PRIMARIES = 64 };

static struct primary {
	struct vgpu_lock lock;
	CUcontext context; /* NULL: nobody retained it */
} primaries[PRIMARIES];

static struct primary *primary_of(CUdevice device)
{
	return device >= 0 && device < PRIMARIES ? &primaries[device] : NULL;
}

/* The life that may be about to end; 0: not known. */
static uint32_t rest(CUcontext context)
{
	struct vgpu_place place;

	if (!context || vgpu_place_of_context(context, &place) != CUDA_SUCCESS)
		return 0;
	vgpu_frees_context_ending(place.context);
	return place.context;
}

/* Others may meet it until the driver has ended it: they must meet this life. */
static struct vgpu_life ending(CUcontext context)
{
	(void)rest(context);
	vgpu_forget_seen();
	return vgpu_place_ending(context);
}

static void end_life(const struct vgpu_life *life, bool ended)
{
	vgpu_place_ended(life, ended);
	vgpu_frees_context_ended(life->id, ended);
	if (!ended || !life->id)
		return;
	vgpu_measured_ended(life->id);
	vgpu_forget_context(life->id);
	vgpu_claims_end_context(life->id);
}

static int card_of(CUcontext context)
{
	struct vgpu_place place;

	return context && vgpu_place_of_context(context, &place) == CUDA_SUCCESS
		   ? place.card
		   : VGPU_CARD_UNMANAGED;
}

static CUresult destroy(CUcontext context, CUresult (*driver_destroy)(CUcontext context))
{
	int card = card_of(context);
	bool alone = vgpu_alone_enter(card);
	struct vgpu_life life = ending(context);
	CUresult result = driver_destroy(context);

	end_life(&life, result == CUDA_SUCCESS);
	vgpu_alone_leave(card, alone);
	return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
	return destroy(context, real_cuCtxDestroy);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	return destroy(context, real_cuCtxDestroy_v2);
}

/* Whoever attached detaches, and the last one ends it: the driver then knows it no more. */
CUresult cuCtxDetach(CUcontext context)
{
	struct vgpu_life life = ending(context);
	CUresult result = real_cuCtxDetach(context);
	unsigned int version;

	end_life(&life, result == CUDA_SUCCESS &&
			    real_cuCtxGetApiVersion(context, &version) != CUDA_SUCCESS);
	return result;
}

bool vgpu_primary_enter(CUdevice device)
{
	struct primary *primary = primary_of(device);

	return primary && vgpu_lock(&primary->lock);
}

void vgpu_primary_leave(CUdevice device, bool entered)
{
	if (entered)
		vgpu_unlock(&primary_of(device)->lock);
}

void vgpu_note_primary(CUdevice device, CUcontext context)
{
	struct primary *primary = primary_of(device);

	if (primary)
		__atomic_store_n(&primary->context, context, __ATOMIC_RELAXED);
}

/* Programs may have come by it without a retain that we saw; asking does not change what is. */
static CUcontext find_primary(CUdevice device)
{
	struct primary *primary = primary_of(device);
	CUcontext context = primary ? __atomic_load_n(&primary->context, __ATOMIC_RELAXED) : NULL;
	unsigned int flags;
	int active = 0;

	if (context || real_cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS ||
	    !active || real_cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return context;
	vgpu_note_primary(device, context);
	(void)real_cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

CUdevice vgpu_device_of_primary(uint32_t life)
{
	struct vgpu_place place;

	for (CUdevice device = 0; life && device < PRIMARIES; device++) {
		CUcontext context = __atomic_load_n(&primaries[device].context, __ATOMIC_RELAXED);
		if (context && vgpu_place_of_context(context, &place) == CUDA_SUCCESS &&
		    place.context == life)
			return device;
	}
	return -1;
}

static void end_primary(CUcontext context)
{
	struct vgpu_life life = vgpu_place_ending(context);

	vgpu_forget_seen();
	end_life(&life, true);
}

/* A release ends it if it was the last one; only the driver knows how often it was retained. */
CUresult vgpu_release_primary(CUdevice device, CUresult (*driver_release)(CUdevice device))
{
	CUcontext context = find_primary(device);
	uint32_t life = rest(context);
	CUresult result = driver_release(device);
	unsigned int flags;
	int active = 1;

	if (result == CUDA_SUCCESS)
		(void)real_cuDevicePrimaryCtxGetState(device, &flags, &active);
	if (!active)
		end_primary(context);
	else
		vgpu_frees_context_ended(life, false);
	return result;
}

static CUresult release(CUdevice device, CUresult (*driver_release)(CUdevice device))
{
	bool entered = vgpu_primary_enter(device);
	CUresult result = vgpu_release_primary(device, driver_release);

	vgpu_primary_leave(device, entered);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release(device, real_cuDevicePrimaryCtxRelease);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release(device, real_cuDevicePrimaryCtxRelease_v2);
}

static CUresult reset(CUdevice device, CUresult (*driver_reset)(CUdevice device))
{
	bool entered = vgpu_primary_enter(device);
	CUcontext context = find_primary(device);
	int card = card_of(context);
	bool alone = vgpu_alone_enter(card);
	uint32_t life = rest(context);
	CUresult result = driver_reset(device);

	if (result == CUDA_SUCCESS) {
		end_primary(context);
		vgpu_meters_forget(device);
	} else {
		vgpu_frees_context_ended(life, false);
	}
	vgpu_alone_leave(card, alone);
	vgpu_primary_leave(device, entered);
	return result;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return reset(device, real_cuDevicePrimaryCtxReset);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return reset(device, real_cuDevicePrimaryCtxReset_v2);
}
