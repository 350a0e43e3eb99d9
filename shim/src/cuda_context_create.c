/*
 * Contexts begin. Beside another one of the process a context is measured: reserved by what the
 * largest so far took, and ended again where it does not fit. Nothing can be measured before the
 * first one on a card: it is charged what the grant says that a context takes, whatever neighbours
 * do, and only where the grant does not say, what nobody of the container explains.
 */
#include <stdbool.h>

#include "admission.h"
#include "hooks.h"
#include "lives.h"
#include "measure.h"
#include "primary.h"
#include "seen.h"
#include "turn.h"
#include "vgpu/region.h"

#define KNOWN_FLAGS	 0xffu /* CU_CTX_FLAGS_MASK */
#define MOST_BYTES	 (INT64_C(2) << 30)
#define FIRST_MOST_BYTES (UINT64_C(512) << 20)

/* The most that a context of each card was measured to take, by its difference. */
static uint64_t largest_bytes[VGPU_MOST_CARDS];

struct creation {
	struct vgpu_reservation reservation;
	struct vgpu_window window; /* not open: nothing to measure by */
	struct vgpu_turn turn;	   /* where nothing is known of its size beforehand */
	bool alone;
	uint64_t granted_bytes; /* what the grant says of a context; 0: nothing */
};

static uint64_t largest_on(int card)
{
	return __atomic_load_n(&largest_bytes[card], __ATOMIC_RELAXED);
}

/* Where nothing is known one is made at a time, so that one at most is more than fits; who gets no
 * turn must have room for the largest. */
static uint64_t unknown_bytes(struct creation *creation, int card)
{
	return vgpu_turn_take(card, &creation->turn, true) ? 1 : FIRST_MOST_BYTES;
}

static void leave(struct creation *creation)
{
	vgpu_alone_leave(creation->reservation.place.card, creation->alone);
	vgpu_turn_end(&creation->turn);
}

/* What cannot succeed is the driver's alone to refuse. */
static CUresult begin(struct creation *creation, const void *out, CUdevice device)
{
	struct vgpu_place place = {VGPU_CARD_UNMANAGED, 0};
	CUresult result = out ? vgpu_place_of_device(device, &place) : CUDA_SUCCESS;
	CUcontext before;
	uint64_t bytes;

	*creation = (struct creation){
	    .window.place = place, .reservation.place = place, .turn = VGPU_NO_TURN};
	vgpu_note_context();
	if (result != CUDA_SUCCESS || place.card < 0)
		return result;
	creation->granted_bytes = bytes = vgpu_context_bytes(place.card);
	if (!bytes && !largest_on(place.card))
		bytes = unknown_bytes(creation, place.card);
	before = vgpu_place_context_on(place.card);
	if (largest_on(place.card) > bytes && (before || !creation->granted_bytes))
		bytes = largest_on(place.card);
	creation->alone = vgpu_alone_enter(place.card);
	result = vgpu_reserve_at(place, bytes, &creation->reservation);
	if (result == CUDA_SUCCESS)
		vgpu_window_open_by(&creation->window, place, before);
	else
		leave(creation);
	return result;
}

static void give_up(struct creation *creation)
{
	vgpu_window_drop(&creation->window);
	vgpu_cancel(&creation->reservation);
	leave(creation);
}

/* In the new context. */
static int64_t measure(struct creation *creation)
{
	const struct vgpu_bounds bounds = {0, MOST_BYTES};
	int card = creation->window.place.card;
	uint64_t known_bytes = largest_on(card);
	int64_t taken_bytes;

	if (!creation->window.open)
		return vgpu_charge_unexplained(creation->window.place, creation->reservation.bytes,
					       known_bytes ? known_bytes : FIRST_MOST_BYTES);
	taken_bytes = vgpu_window_close(&creation->window, bounds);
	if ((uint64_t)taken_bytes > known_bytes)
		__atomic_store_n(&largest_bytes[card], (uint64_t)taken_bytes, __ATOMIC_RELAXED);
	return taken_bytes;
}

/* How much was charged that was not reserved before, and so may not fit. */
static int64_t charge(struct creation *creation, CUcontext context)
{
	struct vgpu_place place;
	int64_t taken_bytes;

	if (vgpu_place_of_context(context, &place) != CUDA_SUCCESS)
		return 0;
	creation->window.place = place;
	if (!creation->window.open && creation->granted_bytes) {
		vgpu_commit_measured(&creation->reservation, place, creation->granted_bytes);
		return 0;
	}
	if (real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return 0;
	taken_bytes = measure(creation);
	(void)real_cuCtxPopCurrent_v2(&context);
	return taken_bytes;
}

/* The driver has made `context`; false: it does not fit, and must be ended again. */
static bool settle(struct creation *creation, CUcontext context)
{
	int64_t taken_bytes;

	vgpu_place_given(context);
	if (creation->reservation.place.card < 0)
		return true;
	taken_bytes = charge(creation, context);
	give_up(creation);
	return !vgpu_took_too_much(&creation->window, taken_bytes);
}

static CUresult settle_own(struct creation *creation, CUresult result, CUcontext made,
			   CUcontext *out)
{
	if (result != CUDA_SUCCESS) {
		give_up(creation);
		return result;
	}
	if (!settle(creation, made)) {
		(void)cuCtxDestroy_v2(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = made;
	return CUDA_SUCCESS;
}

/* The program's own is written when the context is there to stay. */
static CUcontext *at(const CUcontext *out, CUcontext *made)
{
	return out ? made : NULL;
}

/* It does not fit. Flags of no meaning besides, the driver says. */
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

/* Calls that make one: `context` is the program's, `into` what the driver is given, `refusal` the
 * answer where it does not fit. */
#define CREATING_OR(refusal, symbol, params, args)                                                 \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct creation creation;                                                          \
		CUcontext made = NULL;                                                             \
		CUcontext *into = at(context, &made);                                              \
		CUresult result = begin(&creation, context, device);                               \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return refusal;                                                            \
		VGPU_CALL_RESERVED(result, &creation.reservation, real_##symbol args);             \
		return settle_own(&creation, result, made, context);                               \
	}
#define CREATING(symbol, params, args)                                                             \
	CREATING_OR(refused(result, flags, device), symbol, params, args)
#define FOR_DISPLAY(symbol, params, args) CREATING_OR(result, symbol, params, args)

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
FOR_DISPLAY(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
	    (into, flags, device))
FOR_DISPLAY(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
	    (into, flags, device))
FOR_DISPLAY(cuVDPAUCtxCreate,
	    (CUcontext * context, unsigned int flags, CUdevice device, uint32_t display,
	     void *lookup),
	    (into, flags, device, display, lookup))
FOR_DISPLAY(cuVDPAUCtxCreate_v2,
	    (CUcontext * context, unsigned int flags, CUdevice device, uint32_t display,
	     void *lookup),
	    (into, flags, device, display, lookup))

static CUresult retain_first(CUcontext *context, CUdevice device)
{
	struct creation creation;
	CUcontext made = NULL;
	CUresult result = begin(&creation, context, device);

	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &creation.reservation,
			   real_cuDevicePrimaryCtxRetain(at(context, &made), device));
	if (result != CUDA_SUCCESS) {
		give_up(&creation);
		return result;
	}
	vgpu_note_primary(device, made);
	if (!settle(&creation, made)) {
		(void)vgpu_release_primary(device, real_cuDevicePrimaryCtxRelease_v2);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*context = made;
	return CUDA_SUCCESS;
}

static bool is_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return real_cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	bool entered = vgpu_primary_enter(device);
	CUresult result;

	result = is_active(device) ? real_cuDevicePrimaryCtxRetain(context, device)
				   : retain_first(context, device);
	if (result == CUDA_SUCCESS)
		vgpu_note_primary(device, *context);
	vgpu_primary_leave(device, entered);
	return result;
}
