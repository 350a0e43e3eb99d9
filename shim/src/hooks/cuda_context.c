/*
 * Wrappers of the calls that create contexts, and of those that end them with all their memory.
 *
 * A context's memory is reserved before the context is created, so that only contexts that fit
 * reach the GPU. A generation lasts until the driver has ended its context. Most releases and
 * detachments do not end the context, and the driver may refuse to end it while other threads
 * allocate. No lock is held during these calls. If another thread has meanwhile created a new
 * context under the same handle, the driver's own number of the context shows it (generations.h).
 */
#include <stdbool.h>

#include "charge/contexts.h"
#include "charge/generations.h"
#include "charge/meters.h"
#include "charge/place.h"
#include "charge/refund.h"
#include "compute/current.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

#define KNOWN_FLAGS 0xffu /* CU_CTX_FLAGS_MASK */

enum { PRIMARIES = 64 };

/* The handles of the devices' primary contexts, which never change. NULL: not seen yet. */
static CUcontext primaries[PRIMARIES];

/* Reserve for a new context. If `out` is NULL, nothing is reserved, because the driver will refuse
 * the call. */
static CUresult begin(struct vgpu_reservation *reservation, const void *out, CUdevice device)
{
	struct vgpu_place place = {VGPU_GPU_UNMANAGED, 0};
	CUresult result = out ? vgpu_place_of_device(device, &place) : CUDA_SUCCESS;

	*reservation = (struct vgpu_reservation){.place = place};
	if (result != CUDA_SUCCESS || place.gpu < 0)
		return result;
	return vgpu_context_reserve(place, reservation);
}

/* Charge a created context, and return it in `*out`. The context gets a new generation, even if its
 * handle named another context before. */
static CUresult finish(struct vgpu_reservation *reservation, CUresult result, CUcontext made,
		       uint32_t serial, CUcontext *out)
{
	struct vgpu_place place = reservation->place;

	if (result != CUDA_SUCCESS) {
		vgpu_cancel(reservation);
		return result;
	}
	if (place.gpu >= 0)
		vgpu_context_first_used(made, serial, &place, reservation);
	*out = made;
	return CUDA_SUCCESS;
}

/* Return the error of a context that does not fit. If `flags` has unknown bits, return the driver's
 * error instead. */
static CUresult refused(CUresult ours, unsigned int flags, CUdevice device)
{
	CUcontext given;
	CUresult result;

	if (ours != CUDA_ERROR_OUT_OF_MEMORY || !(flags & ~KNOWN_FLAGS))
		return ours;
	result = real_cuCtxCreate_v2(&given, flags, device);
	if (result != CUDA_SUCCESS)
		return result;
	(void)real_cuCtxDestroy_v2(given);
	return ours;
}

/* Define a wrapper. The driver writes the context to `into`, and the wrapper writes the program's
 * pointer `context` only if the call succeeds. */
#define CREATING(symbol, params, args)                                                             \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_reservation reservation;                                               \
		CUcontext made = NULL, *into = context ? &made : NULL;                             \
		CUresult result = begin(&reservation, context, device);                            \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return refused(result, flags, device);                                     \
		VGPU_CALL_RESERVED(result, &reservation, real_##symbol args);                      \
		vgpu_current_changed();                                                            \
		return finish(&reservation, result, made, UINT32_MAX, context);                    \
	}

CREATING(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
	 (into, flags, device))
CREATING(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
	 (into, flags, device))
CREATING(cuCtxCreate_v3,
	 (CUcontext * context, void *affinity, int affinity_count, unsigned int flags,
	  CUdevice device),
	 (into, affinity, affinity_count, flags, device))
CREATING(cuCtxCreate_v4,
	 (CUcontext * context, void *parameters, unsigned int flags, CUdevice device),
	 (into, parameters, flags, device))

/* True only if the driver reports that the primary context does not exist. */
static bool is_inactive(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return real_cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active;
}

static void note_primary(CUdevice device, CUcontext context)
{
	if (device >= 0 && device < PRIMARIES)
		__atomic_store_n(&primaries[device], context, __ATOMIC_RELAXED);
}

/* Retain a primary context that exists. It may be a new one of the same handle, so enter it
 * again. */
static CUresult retain_active(CUcontext *context, CUdevice device)
{
	struct vgpu_place place;
	CUresult result = real_cuDevicePrimaryCtxRetain(context, device);

	if (result == CUDA_SUCCESS && vgpu_place_of_device(device, &place) == CUDA_SUCCESS &&
	    place.gpu >= 0)
		vgpu_context_first_used(*context, 0, &place, NULL);
	return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct vgpu_reservation reservation;
	uint32_t serial = vgpu_generations_serial();
	CUcontext made = NULL;
	CUresult result;

	if (!is_inactive(device)) {
		result = retain_active(context, device);
	} else {
		result = begin(&reservation, context, device);
		if (result == CUDA_ERROR_OUT_OF_MEMORY && !is_inactive(device))
			return retain_active(context, device); /* another thread created it first */
		if (result != CUDA_SUCCESS)
			return result;
		VGPU_CALL_RESERVED(result, &reservation,
				   real_cuDevicePrimaryCtxRetain(context ? &made : NULL, device));
		result = finish(&reservation, result, made, serial, context);
	}
	if (result == CUDA_SUCCESS)
		note_primary(device, *context);
	return result;
}

/* The handle of the primary context, or NULL if there is none. The program may have retained it
 * without a hooked call. So retain the context to learn its handle, and release it at once. */
static CUcontext find_primary(CUdevice device)
{
	CUcontext context = NULL;

	if (device < 0 || device >= PRIMARIES)
		return NULL;
	context = __atomic_load_n(&primaries[device], __ATOMIC_RELAXED);
	if (context || is_inactive(device) ||
	    real_cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return context;
	note_primary(device, context);
	(void)real_cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

CUdevice vgpu_device_of_primary(uint32_t generation)
{
	for (CUdevice device = 0; generation && device < PRIMARIES; device++)
		if (vgpu_generation_of(__atomic_load_n(&primaries[device], __ATOMIC_RELAXED)).id ==
		    generation)
			return device;
	return -1;
}

/* Whether a release ended the context of the generation. Another thread may have created a new
 * context since. */
static bool has_ended(CUdevice device, CUcontext context, const struct vgpu_generation *generation)
{
	uint64_t now_id;

	if (is_inactive(device))
		return true;
	now_id = generation->driver_id ? vgpu_context_driver_id(context) : 0;
	return now_id && now_id != generation->driver_id;
}

static CUresult release(CUdevice device, CUresult (*driver_release)(CUdevice device))
{
	CUcontext context = find_primary(device);
	struct vgpu_generation generation = vgpu_generation_of(context);
	CUresult result = driver_release(device);

	if (result == CUDA_SUCCESS && generation.id && has_ended(device, context, &generation))
		vgpu_context_ended(generation.id);
	return result;
}

static CUresult reset(CUdevice device, CUresult (*driver_reset)(CUdevice device))
{
	struct vgpu_generation generation = vgpu_generation_of(find_primary(device));
	CUresult result = driver_reset(device);

	if (result == CUDA_SUCCESS) {
		vgpu_context_ended(generation.id);
		vgpu_meters_forget(device);
	}
	return result;
}

static CUresult destroy(CUcontext context, CUresult (*driver_destroy)(CUcontext context))
{
	struct vgpu_generation generation = vgpu_generation_of(context);
	CUresult result = driver_destroy(context);

	if (result == CUDA_SUCCESS)
		vgpu_context_ended(generation.id);
	return result;
}

/* Define a wrapper by one of the functions above: `by` is release, reset or destroy. */
#define ENDING(symbol, by, type)                                                                   \
	CUresult symbol(type ending)                                                               \
	{                                                                                          \
		vgpu_current_changed();                                                            \
		return by(ending, real_##symbol);                                                  \
	}

ENDING(cuDevicePrimaryCtxRelease, release, CUdevice)
ENDING(cuDevicePrimaryCtxRelease_v2, release, CUdevice)
ENDING(cuDevicePrimaryCtxReset, reset, CUdevice)
ENDING(cuDevicePrimaryCtxReset_v2, reset, CUdevice)
ENDING(cuCtxDestroy, destroy, CUcontext)
ENDING(cuCtxDestroy_v2, destroy, CUcontext)

/* The last detachment ends the context: then the driver no longer knows its handle. */
CUresult cuCtxDetach(CUcontext context)
{
	struct vgpu_generation generation = vgpu_generation_of(context);
	CUresult result = real_cuCtxDetach(context);
	unsigned int version;

	vgpu_current_changed();
	if (result == CUDA_SUCCESS && real_cuCtxGetApiVersion(context, &version) != CUDA_SUCCESS)
		vgpu_context_ended(generation.id);
	return result;
}
