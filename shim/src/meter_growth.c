/*
 * The growth rule: how a call that may make a pool or a device's graphs grow is made, charged, and
 * undone where that is more than fits; see vgpu_meter_call in meter.h.
 */
#include "claims.h"
#include "meter_driver.h"
#include "step.h"
#include "stream_frees.h"

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

/* What the call may take: what is reserved of the bytes that it needs, or a chunk of a taker's. */
struct allowance {
	struct vgpu_reservation reservation;
	uint64_t bytes;
	bool chunk;
	bool refused; /* there is no room for it, and the driver was not asked */
	bool settled;
};

/* Charge what the meter grew by, or refund what it did not. */
static bool account(const struct vgpu_meter *meter, const struct allowance *allowed,
		    uint64_t after_bytes)
{
	uint64_t before_bytes = meter->charged_bytes;

	if (allowed->chunk && after_bytes > before_bytes &&
	    after_bytes - before_bytes <= VGPU_CHUNK_BYTES)
		return vgpu_charge(meter->card, after_bytes - before_bytes) == VGPU_OK;
	return vgpu_settle(&allowed->reservation, before_bytes, after_bytes) == CUDA_SUCCESS;
}

/* With the lock, after the driver gave: what cannot be charged is not kept. */
static CUresult settle(struct vgpu_meter *meter, struct allowance *allowed,
		       const struct vgpu_metered_call *call)
{
	uint64_t reserved_bytes = allowed->reservation.bytes, after_bytes;

	if (!vgpu_meter_reserved(meter, &after_bytes)) {
		vgpu_meter_recheck_current(meter);
		return undo(meter, call);
	}
	if (reserved_bytes && after_bytes > meter->charged_bytes + reserved_bytes)
		__atomic_store_n(&whole_chunks, true, __ATOMIC_RELAXED);
	allowed->settled = account(meter, allowed, after_bytes);
	if (!allowed->settled)
		return undo(meter, call);
	vgpu_meter_set_charged(meter, after_bytes);
	return CUDA_SUCCESS;
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
	uint64_t chunks_bytes =
	    (bytes + VGPU_CHUNK_BYTES - 1) / VGPU_CHUNK_BYTES * VGPU_CHUNK_BYTES;
	bool exact = !call->undo || (bytes > VGPU_CHUNK_BYTES &&
				     !__atomic_load_n(&whole_chunks, __ATOMIC_RELAXED));

	if (chunks_bytes < bytes)
		return false;
	if (!exact)
		return try_reserve(reservation, chunks_bytes);
	return (vgpu_fits(reservation->place.card, chunks_bytes) &&
		try_reserve(reservation, chunks_bytes)) ||
	       try_reserve(reservation, bytes);
}

static bool reserve_call(struct allowance *allowed, const struct vgpu_metered_call *call)
{
	if (!allowed->bytes || reserve_growth(&allowed->reservation, allowed->bytes, call))
		return true;
	allowed->reservation.bytes = 0;
	return is_capturing(call);
}

/*
 * Reserved within the lock: of those who wait for the meter each would hold a chunk, and have the
 * others refused for it.
 */
static CUresult attempt(struct vgpu_meter *meter, struct allowance *allowed,
			const struct vgpu_metered_call *call)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	bool moved;

	if (!vgpu_lock(&meter->lock))
		return CUDA_ERROR_OUT_OF_MEMORY;
	moved = call->moved && !vgpu_meter_is_current(meter);
	if (call->moved)
		*call->moved = moved;
	allowed->refused = !moved && !reserve_call(allowed, call);
	if (allowed->refused)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else if (!moved)
		result = call->take(call);
	if (result == CUDA_SUCCESS) {
		VGPU_AT(METER_GREW);
		result = settle(meter, allowed, call);
		VGPU_AT(METER_CHARGED);
	}
	if (!allowed->settled && allowed->reservation.bytes) {
		vgpu_cancel(&allowed->reservation);
		allowed->reservation.bytes = 0;
	}
	vgpu_unlock(&meter->lock);
	return result;
}

/* As long as the driver's refusal may be due to the dead. */
static CUresult call_within(struct allowance allowed, struct vgpu_meter *meter,
			    const struct vgpu_metered_call *call)
{
	CUresult result;
	int round = 0;

	do
		result = attempt(meter, &allowed, call);
	while (!allowed.refused && vgpu_await_teardown(&allowed.reservation, result, &round));
	VGPU_AT(ADMIT_CALLED);
	return result;
}

/*
 * Most calls are served by what a pool holds: far below the limit they are made by a taker of a
 * chunk. If the pool then grows by more and that does not fit, the call is undone.
 */
static bool call_as_taker(struct vgpu_meter *meter, uint64_t bytes,
			  const struct vgpu_metered_call *call, CUresult *result)
{
	struct allowance allowed = {.reservation = {.place = {.card = meter->card}}, .chunk = true};
	struct vgpu_taker taker;

	if (!call->undo || bytes > VGPU_CHUNK_BYTES || !vgpu_taker_enter(meter->card, &taker))
		return false;
	*result = call_within(allowed, meter, call);
	vgpu_taker_leave(&taker);
	return *result != CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult call_once(struct vgpu_meter *meter, uint64_t bytes,
			  const struct vgpu_metered_call *call)
{
	struct allowance allowed = {.reservation = {.place = {.card = meter->card}},
				    .bytes = bytes};
	CUresult result;

	if (bytes && call_as_taker(meter, bytes, call, &result))
		return result;
	return call_within(allowed, meter, call);
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
	result = call_once(meter, bytes, call);
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	more = bytes && vgpu_meters_trim(meter->card);
	more |= bytes && vgpu_drop_closed_exports();
	if (more)
		result = call_once(meter, bytes, call);
	while (bytes && result == CUDA_ERROR_OUT_OF_MEMORY &&
	       bytes <= vgpu_limit_bytes(meter->card) &&
	       vgpu_await_frees(meter->card, bytes, &round))
		result = call_once(meter, bytes, call);
	return result;
}
