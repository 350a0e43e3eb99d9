/*
 * The growth rule: how a call that may make a pool or a device's graphs grow is made, charged, and
 * undone where that is more than fits; see vgpu_meter_call in meter.h.
 */
#include "claims.h"
#include "meter_driver.h"
#include "stream_frees.h"

/* The driver's pools grow by so much at a time (seen from CUDA 11.2 on), or by one larger request.
 */
#define CHUNK_BYTES (UINT64_C(32) << 20)

/* So much below the limit a pool may grow by a chunk before anything is reserved. */
#define FAR_BYTES (8 * CHUNK_BYTES)

/* A pool was seen to grow by more than one larger request: by whole chunks, then. */
static bool whole_chunks;

/* As it was before, and refused; what cannot be undone is kept, and charged. */
static CUresult undo(struct vgpu_meter *meter, const struct vgpu_metered_call *call)
{
	bool undone =
	    call->undo && vgpu_meter_shrink(meter, call, meter->charged_bytes) == CUDA_SUCCESS;

	vgpu_meter_follow(meter);
	return undone ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* With the lock, after the driver gave: what cannot be charged is not kept. */
static CUresult settle(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
		       const struct vgpu_metered_call *call, bool *settled)
{
	uint64_t after_bytes;

	if (!vgpu_meter_reserved(meter, &after_bytes)) {
		vgpu_meter_recheck_current(meter);
		return undo(meter, call);
	}
	if (reservation->bytes && after_bytes > meter->charged_bytes + reservation->bytes)
		__atomic_store_n(&whole_chunks, true, __ATOMIC_RELAXED);
	*settled = vgpu_settle(reservation, meter->charged_bytes, after_bytes) == CUDA_SUCCESS;
	if (!*settled)
		return undo(meter, call);
	vgpu_meter_set_charged(meter, after_bytes);
	return CUDA_SUCCESS;
}

static CUresult attempt(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
			const struct vgpu_metered_call *call, bool *settled)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!vgpu_lock(&meter->lock))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (call->moved)
		*call->moved = !vgpu_meter_is_current(meter);
	if (!call->moved || !*call->moved)
		result = call->take(call);
	if (result == CUDA_SUCCESS)
		result = settle(meter, reservation, call, settled);
	vgpu_unlock(&meter->lock);
	return result;
}

static CUresult call_reserved(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
			      const struct vgpu_metered_call *call)
{
	bool settled = false;
	CUresult result;

	VGPU_CALL_RESERVED(result, reservation, attempt(meter, reservation, call, &settled));
	if (!settled && reservation->bytes)
		vgpu_cancel(reservation);
	return result;
}

/* A captured call takes no memory: it becomes a node of a graph. */
static bool is_capturing(const struct vgpu_metered_call *call)
{
	int status = 0;

	return real_cuStreamIsCapturing(call->capturing, &status) == CUDA_SUCCESS && status;
}

static bool try_reserve(struct vgpu_reservation *reservation, uint64_t bytes)
{
	reservation->bytes = bytes;
	return vgpu_reserve(reservation->place.card, bytes) == VGPU_OK;
}

/*
 * What the call may grow by. Nobody can tell whether it is served by what the pool holds unused, so
 * it is reserved all the same. Graphs take what they ask for.
 */
static bool reserve_growth(struct vgpu_reservation *reservation, uint64_t bytes,
			   const struct vgpu_metered_call *call)
{
	uint64_t chunks_bytes = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	bool exact = !call->undo ||
		     (bytes > CHUNK_BYTES && !__atomic_load_n(&whole_chunks, __ATOMIC_RELAXED));

	if (chunks_bytes < bytes)
		return false;
	if (!exact)
		return try_reserve(reservation, chunks_bytes);
	return (vgpu_fits(reservation->place.card, chunks_bytes) &&
		try_reserve(reservation, chunks_bytes)) ||
	       try_reserve(reservation, bytes);
}

/*
 * Most calls are served by what a pool holds: where a chunk more is far from the limit, nothing is
 * reserved before. If it then grows and that does not fit, the call is undone.
 */
static bool is_far(const struct vgpu_meter *meter, uint64_t bytes,
		   const struct vgpu_metered_call *call)
{
	return !bytes || (call->undo && bytes <= CHUNK_BYTES && vgpu_fits(meter->card, FAR_BYTES));
}

/* False: there is no room for it, and the driver was not asked. */
static bool call_once(struct vgpu_meter *meter, uint64_t bytes,
		      const struct vgpu_metered_call *call, CUresult *result)
{
	struct vgpu_reservation reservation = {.place = {.card = meter->card}};

	if (is_far(meter, bytes, call)) {
		*result = call_reserved(meter, &reservation, call);
		if (*result != CUDA_ERROR_OUT_OF_MEMORY)
			return true;
	}
	if (!reserve_growth(&reservation, bytes, call)) {
		if (!is_capturing(call))
			return false;
		reservation.bytes = 0;
	}
	*result = call_reserved(meter, &reservation, call);
	return true;
}

CUresult vgpu_meter_call(struct vgpu_meter *meter, uint64_t bytes,
			 const struct vgpu_metered_call *call)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	bool more;
	int round = 0;

	if (meter->card == VGPU_CARD_UNMANAGED)
		return call->take(call);
	if (meter->card < 0)
		return result;
	if (call_once(meter, bytes, call, &result) && result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	more = bytes && vgpu_meters_trim(meter->card);
	more |= bytes && vgpu_drop_closed_exports();
	if (more)
		call_once(meter, bytes, call, &result);
	while (bytes && result == CUDA_ERROR_OUT_OF_MEMORY &&
	       bytes <= vgpu_limit_bytes(meter->card) &&
	       vgpu_await_frees(meter->card, bytes, &round))
		call_once(meter, bytes, call, &result);
	return result;
}
