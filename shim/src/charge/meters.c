/* See meters.h. meter_table.c has the table. */
#include "charge/meters.h"

#include "charge/device_memory.h"
#include "charge/meter_table.h"
#include "ledger/executable_graphs.h"
#include "loader/capture_mode.h"
#include "os/step.h"
#include "vgpu/region.h"

enum {
	MAX_LOOKS = 8, /* readings to try while other threads read the figure too */
	PAUSE_NS = 1000000,
	MAX_PAUSES = 2500, /* how often to wait for other threads' calls */
	SKIPPED_AT_MOST = 64,
};
/* A pool grows by at most a chunk and twice what was requested, so the float covers requests of
 * COVERED_BYTES since the last reading. Each counts its size and REQUEST_BYTES for the driver's
 * rounding. The pool gets the float if FAR_BYTES more fit the limit, and has it while NEAR_BYTES
 * do. */
#define COVERED_BYTES (VGPU_CHUNK_BYTES / 2)
#define REQUEST_BYTES (COVERED_BYTES / 64)
#define FAR_BYTES     (UINT64_C(1) << 30)
#define NEAR_BYTES    (FAR_BYTES / 2)

/* Number of meters that hold memory; number of requests and frees of pools so far. */
static uint32_t live;
static uint64_t changes;

/* The latest reading of all meters. Threads may write it at once: then one more reading follows. */
static struct {
	uint64_t changes;
	const void *handle;
	uint32_t skipped; /* calls without a reading since */
} latest;

/* True once a request for more than a chunk has made a pool grow by more than was reserved. The
 * driver's pools then grow by whole chunks. */
static bool whole_chunks;

void vgpu_meter_set_held(struct vgpu_meter *meter, uint64_t bytes)
{
	bool before = meter->held_bytes, after = bytes;

	__atomic_store_n(&meter->held_bytes, bytes, __ATOMIC_RELAXED);
	if (before != after)
		__atomic_add_fetch(&live, after ? 1 : -1, __ATOMIC_RELAXED);
	if (before != after && after)
		__atomic_store_n(&vgpu_reclaim, vgpu_meters_trim, __ATOMIC_RELEASE);
}

/* True while the pool may not have the float. Other threads set it without the meter's lock. */
static bool is_waiting(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->wait_calls, __ATOMIC_RELAXED);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool vgpu_meter_enter(struct vgpu_meter *meter, uint64_t bytes, uint64_t covered_bytes)
{
	uint64_t begun_bytes;
	bool may;

	if (!vgpu_lock(&meter->lock))
		return false;
	begun_bytes = meter->begun_bytes + covered_bytes;
	may = covered_bytes ? meter->float_bytes && !is_waiting(meter) &&
				  begun_bytes - meter->read_bytes <= COVERED_BYTES
			    : vgpu_meter_state(meter) != VGPU_METER_NONE;
	if (may) {
		meter->users++;
		__atomic_store_n(&meter->begun_bytes, begun_bytes, __ATOMIC_RELAXED);
		__atomic_store_n(&meter->pending_bytes, meter->pending_bytes + bytes,
				 __ATOMIC_RELAXED);
		vgpu_meter_set_held(meter, meter->held_bytes + bytes);
	}
	vgpu_unlock(&meter->lock);
	return may;
}

/* Leave the meter. The caller holds its lock. True: the caller must destroy the pool with the
 * driver, because the program destroyed it, it is empty, and no other thread uses it. */
static bool go_out(struct vgpu_meter *meter)
{
	if (--meter->users || meter->held_bytes || vgpu_meter_state(meter) != VGPU_METER_DESTROYED)
		return false;
	__atomic_store_n(&meter->state, VGPU_METER_NONE, __ATOMIC_RELEASE);
	return true;
}

/* The float after a reading. The caller holds the meter's lock. Requests that the reading may lack
 * keep it. */
static uint64_t wanted_float(struct vgpu_meter *meter)
{
	bool has = meter->float_bytes, may;

	if (has && meter->begun_bytes != meter->read_bytes)
		return VGPU_FLOAT_BYTES;
	may = meter->latest_bytes && vgpu_meter_state(meter) == VGPU_METER_POOL &&
	      !is_waiting(meter) && meter->gpu >= 0 &&
	      vgpu_fits(meter->gpu, has ? NEAR_BYTES : FAR_BYTES);
	return may && (has || vgpu_meter_take_float(meter)) ? VGPU_FLOAT_BYTES : 0;
}

/* The amount to charge: the driver's figure, what other calls in progress may still add, and the
 * float. The figure may already include an unknown part of those calls. So their reservations are
 * added only up to the present charge. */
static uint64_t wanted_bytes(struct vgpu_meter *meter)
{
	uint64_t reserved_bytes = least(meter->latest_bytes + meter->pending_bytes,
					meter->held_bytes - meter->float_bytes);

	__atomic_store_n(&meter->float_bytes, wanted_float(meter), __ATOMIC_RELAXED);
	return meter->float_bytes +
	       (reserved_bytes > meter->latest_bytes ? reserved_bytes : meter->latest_bytes);
}

struct reading {
	uint64_t bytes;
	uint64_t ended_bytes; /* of the covered requests: certainly included */
	bool known;
};

/* Read the driver's figure and lock the meter. Read again if another thread has read the figure
 * meanwhile. */
static bool look_and_lock(struct vgpu_meter *meter, struct reading *reading)
{
	for (int looks = 1;; looks++) {
		uint64_t before = __atomic_load_n(&meter->readings, __ATOMIC_ACQUIRE);

		reading->bytes = 0;
		reading->ended_bytes = __atomic_load_n(&meter->ended_bytes, __ATOMIC_ACQUIRE);
		reading->known = vgpu_meter_reserved(meter, &reading->bytes);
		if (!vgpu_lock(&meter->lock))
			return false;
		if (!reading->known || before == meter->readings)
			return true;
		if (looks == MAX_LOOKS) { /* the larger of two figures is safe */
			reading->bytes +=
			    meter->latest_bytes - least(reading->bytes, meter->latest_bytes);
			return true;
		}
		vgpu_unlock(&meter->lock);
	}
}

/* Do what must wait until the meter's lock is released: driver calls and updates of the counter. */
static void follow(int gpu, CUmemoryPool destroyed, bool graphs_shrank, int64_t delta_bytes,
		   bool gave_float)
{
	if (graphs_shrank)
		vgpu_executable_graphs_trimmed(gpu);
	if (destroyed)
		(void)real_cuMemPoolDestroy(destroyed);
	if (delta_bytes > 0 && gpu >= 0)
		(void)vgpu_charge(gpu, (uint64_t)delta_bytes);
	else if (delta_bytes < 0 && gpu >= 0)
		vgpu_refund(gpu, (uint64_t)-delta_bytes);
	if (gave_float)
		vgpu_meter_drop_float(gpu);
}

/* Read and charge the driver's current figure, and leave the meter. `done_bytes` of the
 * reservations belong to a call that has ended. False: the driver does not report a figure. */
static bool settle(struct vgpu_meter *meter, uint64_t done_bytes, int64_t *delta_bytes)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;
	int gpu = vgpu_meter_gpu(meter);
	uint64_t held_bytes, wanted;
	struct reading reading;
	bool graphs_shrank, ends, gave_float;

	*delta_bytes = 0;
	if (!look_and_lock(meter, &reading))
		return reading.known;
	if (!reading.known) /* assume the worst case until the driver reports again */
		reading.bytes = meter->latest_bytes + done_bytes;
	graphs_shrank =
	    reading.bytes < meter->latest_bytes && vgpu_meter_state(meter) == VGPU_METER_GRAPHS;
	__atomic_store_n(&meter->readings, meter->readings + 1, __ATOMIC_RELAXED);
	meter->latest_bytes = reading.bytes;
	if (reading.known && reading.ended_bytes > meter->read_bytes)
		meter->read_bytes = reading.ended_bytes;
	__atomic_store_n(&meter->pending_bytes, meter->pending_bytes - done_bytes,
			 __ATOMIC_RELAXED);
	if (done_bytes && is_waiting(meter))
		__atomic_sub_fetch(&meter->wait_calls, 1, __ATOMIC_RELAXED);
	held_bytes = meter->held_bytes;
	gave_float = meter->float_bytes;
	wanted = wanted_bytes(meter);
	gave_float = gave_float && !meter->float_bytes;
	if (wanted != held_bytes)
		vgpu_meter_set_held(meter, wanted);
	ends = go_out(meter);
	vgpu_unlock(&meter->lock);
	*delta_bytes = (int64_t)(wanted - held_bytes);
	if (__builtin_expect(wanted != held_bytes || ends || graphs_shrank || gave_float, 0))
		follow(gpu, ends ? pool : NULL, graphs_shrank, *delta_bytes, gave_float);
	return reading.known;
}

int64_t vgpu_meter_leave(struct vgpu_meter *meter)
{
	int64_t delta_bytes;

	(void)settle(meter, 0, &delta_bytes);
	return delta_bytes;
}

void vgpu_meter_read(struct vgpu_meter *meter)
{
	if (vgpu_meter_enter(meter, 0, 0))
		(void)vgpu_meter_leave(meter);
}

/* True if calls in the stream are captured. Such a call takes no memory, but becomes a node of a
 * graph. */
static bool is_capturing(CUstream stream)
{
	int status = 0;

	return real_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status;
}

static bool try_reserve(struct vgpu_reservation *reservation, uint64_t bytes)
{
	reservation->bytes = bytes;
	if (vgpu_reserve(reservation->place.gpu, bytes) == VGPU_OK)
		return true;
	reservation->bytes = 0;
	return false;
}

/* Reserve the bytes by which the call may grow the pool, although the pool's unused memory may
 * suffice. Graphs grow by exactly the size that they request. */
static bool reserve_growth(struct vgpu_growth *growth, uint64_t bytes)
{
	uint64_t chunks_bytes =
	    (bytes + VGPU_CHUNK_BYTES - 1) / VGPU_CHUNK_BYTES * VGPU_CHUNK_BYTES;
	bool exact =
	    vgpu_meter_state(growth->meter) == VGPU_METER_GRAPHS ||
	    (bytes > VGPU_CHUNK_BYTES && !__atomic_load_n(&whole_chunks, __ATOMIC_RELAXED));

	if (chunks_bytes < bytes)
		return false;
	if (!exact)
		return try_reserve(&growth->reservation, chunks_bytes);
	return (vgpu_fits(growth->reservation.place.gpu, chunks_bytes) &&
		try_reserve(&growth->reservation, chunks_bytes)) ||
	       try_reserve(&growth->reservation, bytes);
}

/* True if the float covers the request. A reading makes room for it. */
static bool cover(struct vgpu_growth *growth, uint64_t bytes)
{
	struct vgpu_meter *meter = growth->meter;
	uint64_t counted_bytes = bytes + REQUEST_BYTES;
	bool covered = bytes <= COVERED_BYTES - REQUEST_BYTES &&
		       __atomic_load_n(&meter->float_bytes, __ATOMIC_RELAXED);

	if (covered && !vgpu_meter_enter(meter, 0, counted_bytes)) {
		vgpu_meter_read(meter);
		covered = vgpu_meter_enter(meter, 0, counted_bytes);
	}
	growth->covered_bytes = covered ? counted_bytes : 0;
	return covered;
}

/* End a covered request, and leave the meter. False: the caller must settle, and so leave, because
 * the float is wanted back or the pool was destroyed. */
static bool uncover(struct vgpu_meter *meter, uint64_t covered_bytes)
{
	bool leaves;

	if (!vgpu_lock(&meter->lock))
		return true;
	__atomic_store_n(&meter->ended_bytes, meter->ended_bytes + covered_bytes, __ATOMIC_RELEASE);
	leaves = vgpu_meter_state(meter) == VGPU_METER_POOL && !is_waiting(meter);
	meter->users -= leaves;
	vgpu_unlock(&meter->lock);
	return leaves;
}

/* True if any call on that GPU is in progress. Its end may return the chunk that it reserved, or
 * the float. */
static bool any_pending(int gpu)
{
	struct vgpu_meter *meter;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (vgpu_meter_gpu(meter) == gpu &&
		    (__atomic_load_n(&meter->pending_bytes, __ATOMIC_RELAXED) ||
		     __atomic_load_n(&meter->begun_bytes, __ATOMIC_RELAXED) !=
			 __atomic_load_n(&meter->ended_bytes, __ATOMIC_RELAXED)))
			return true;
	return false;
}

/* Try again before a refusal. First make the driver release what pools hold unused. Then wait for
 * other threads' calls, whose end may return reserved chunks. */
static bool reserve_at_last(struct vgpu_growth *growth, uint64_t bytes)
{
	int gpu = growth->reservation.place.gpu;

	if (!vgpu_may_ever_fit(gpu, bytes))
		return false;
	if (vgpu_meters_trim(gpu) && reserve_growth(growth, bytes))
		return true;
	for (int pauses = 0; pauses < MAX_PAUSES && any_pending(gpu); pauses++) {
		vgpu_pause(PAUSE_NS);
		if (reserve_growth(growth, bytes))
			return true;
	}
	return false;
}

CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out)
{
	int gpu = vgpu_meter_gpu(meter);

	*out = (struct vgpu_growth){.meter = meter, .reservation.place = {.gpu = gpu}};
	if (gpu == VGPU_GPU_NOT_GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_meters_changed();
	if (!cover(out, bytes)) {
		bytes = vgpu_whole_blocks(gpu, bytes);
		if (gpu >= 0 && bytes && !reserve_growth(out, bytes) && !is_capturing(capturing) &&
		    !reserve_at_last(out, bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (!vgpu_meter_enter(meter, out->reservation.bytes, 0)) {
			vgpu_cancel(&out->reservation);
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	VGPU_AT(METER_RESERVED);
	return CUDA_SUCCESS;
}

bool vgpu_growth_end(struct vgpu_growth *growth)
{
	int gpu = vgpu_meter_gpu(growth->meter);
	int64_t delta_bytes;
	bool known;

	VGPU_AT(METER_GREW);
	if (growth->covered_bytes && uncover(growth->meter, growth->covered_bytes))
		return true;
	known = settle(growth->meter, growth->reservation.bytes, &delta_bytes) || gpu < 0;
	if (delta_bytes > 0 && growth->reservation.bytes > VGPU_CHUNK_BYTES &&
	    !__atomic_load_n(&growth->meter->float_bytes, __ATOMIC_RELAXED))
		__atomic_store_n(&whole_chunks, true, __ATOMIC_RELAXED);
	VGPU_AT(METER_CHARGED);
	return known && (delta_bytes <= 0 || gpu < 0 || vgpu_fits(gpu, 0));
}

static void read_all(bool those_that_hold)
{
	struct vgpu_meter *meter;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (!those_that_hold || __atomic_load_n(&meter->held_bytes, __ATOMIC_RELAXED))
			vgpu_meter_read(meter);
}

void vgpu_meters_changed(void)
{
	__atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED);
}

void vgpu_meters_read(const void *handle)
{
	uint64_t now = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
	uint32_t skipped = __atomic_load_n(&latest.skipped, __ATOMIC_RELAXED);

	if (!__atomic_load_n(&live, __ATOMIC_RELAXED))
		return;
	if (handle && handle == __atomic_load_n(&latest.handle, __ATOMIC_RELAXED) &&
	    now == __atomic_load_n(&latest.changes, __ATOMIC_RELAXED) &&
	    skipped < SKIPPED_AT_MOST) {
		__atomic_store_n(&latest.skipped, skipped + 1, __ATOMIC_RELAXED);
		return;
	}
	__atomic_store_n(&latest.skipped, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&latest.changes, now, __ATOMIC_RELAXED);
	__atomic_store_n(&latest.handle, handle, __ATOMIC_RELAXED);
	read_all(true);
}

bool vgpu_meters_moved(int gpu)
{
	read_all(false);
	return vgpu_fits(gpu, 0);
}

CUresult vgpu_trim_graphs(CUdevice device, int gpu)
{
	const struct vgpu_meter *meter = vgpu_meter_graphs(gpu);
	uint64_t before_bytes = 0, after_bytes = 0;
	CUresult result;

	if (meter)
		(void)vgpu_meter_reserved(meter, &before_bytes);
	result = real_cuDeviceGraphMemTrim(device);
	if (meter)
		(void)vgpu_meter_reserved(meter, &after_bytes);
	if (after_bytes != before_bytes)
		vgpu_executable_graphs_trimmed(gpu);
	return result;
}

void vgpu_meter_trimmed(const struct vgpu_meter *meter)
{
	int mode = vgpu_capture_mode_relax();

	if (vgpu_meter_state(meter) == VGPU_METER_GRAPHS)
		(void)vgpu_trim_graphs(meter->device, vgpu_meter_gpu(meter));
	else
		(void)real_cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)meter->pool, 0);
	vgpu_capture_mode_restore(mode);
}

bool vgpu_meter_trim(struct vgpu_meter *meter)
{
	if (!vgpu_meter_enter(meter, 0, 0))
		return false;
	vgpu_meter_trimmed(meter);
	__atomic_store_n(&meter->wait_calls, VGPU_FLOAT_WAIT_CALLS, __ATOMIC_RELAXED);
	return vgpu_meter_leave(meter) < 0;
}

bool vgpu_meters_trim(int gpu)
{
	struct vgpu_meter *meter;
	bool gained = false;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (vgpu_meter_gpu(meter) == gpu &&
		    __atomic_load_n(&meter->held_bytes, __ATOMIC_RELAXED))
			gained |= vgpu_meter_trim(meter);
	return gained;
}
