/* See meters.h. meter_table.c has the table. */
#include "charge/meters.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "charge/meter_table.h"
#include "ledger/executable_graphs.h"
#include "loader/capture_mode.h"
#include "os/step.h"
#include "vgpu/region.h"

enum {
	MAX_LOOKS = 8, /* readings to try while other threads read the figure too */
	PAUSE_NS = 1000000,
	MAX_PAUSES = 2500, /* how often to wait for other threads' calls */
};

uint32_t vgpu_meters_live;

/* True once a request for more than a chunk has made a pool grow by more than was reserved. The
 * driver's pools then grow by whole chunks. */
static bool whole_chunks;

void vgpu_meter_set_held(struct vgpu_meter *meter, uint64_t bytes)
{
	bool before = meter->held_bytes, after = bytes;

	__atomic_store_n(&meter->held_bytes, bytes, __ATOMIC_RELAXED);
	if (before != after)
		__atomic_add_fetch(&vgpu_meters_live, after ? 1 : -1, __ATOMIC_RELAXED);
	if (before != after && after)
		__atomic_store_n(&vgpu_reclaim, vgpu_meters_trim, __ATOMIC_RELEASE);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool vgpu_meter_enter(struct vgpu_meter *meter, uint64_t bytes)
{
	bool there;

	if (!vgpu_lock(&meter->lock))
		return false;
	there = vgpu_meter_state(meter) != VGPU_METER_NONE;
	if (there) {
		meter->users++;
		__atomic_store_n(&meter->pending_bytes, meter->pending_bytes + bytes,
				 __ATOMIC_RELAXED);
		vgpu_meter_set_held(meter, meter->held_bytes + bytes);
	}
	vgpu_unlock(&meter->lock);
	return there;
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

/* The amount to charge: the driver's figure, and what other calls in progress may still add. The
 * figure may already include an unknown part of those calls. So their reservations are added only
 * up to the present charge. */
static uint64_t wanted_bytes(const struct vgpu_meter *meter)
{
	uint64_t covered_bytes =
	    least(meter->latest_bytes + meter->pending_bytes, meter->held_bytes);

	return covered_bytes > meter->latest_bytes ? covered_bytes : meter->latest_bytes;
}

struct reading {
	uint64_t bytes;
	bool known;
};

/* Read the driver's figure and lock the meter. Read again if another thread has read the figure
 * meanwhile. */
static bool look_and_lock(struct vgpu_meter *meter, struct reading *reading)
{
	for (int looks = 1;; looks++) {
		uint64_t before = __atomic_load_n(&meter->readings, __ATOMIC_ACQUIRE);

		reading->bytes = 0;
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
static void follow(int gpu, CUmemoryPool destroyed, bool graphs_shrank, int64_t delta_bytes)
{
	if (graphs_shrank)
		vgpu_executable_graphs_trimmed(gpu);
	if (destroyed)
		(void)real_cuMemPoolDestroy(destroyed);
	if (delta_bytes > 0 && gpu >= 0)
		(void)vgpu_charge(gpu, (uint64_t)delta_bytes);
	else if (delta_bytes < 0 && gpu >= 0)
		vgpu_refund(gpu, (uint64_t)-delta_bytes);
}

/* Read and charge the driver's current figure, and leave the meter. `done_bytes` of the
 * reservations belong to a call that has ended. False: the driver does not report a figure. */
static bool settle(struct vgpu_meter *meter, uint64_t done_bytes, int64_t *delta_bytes)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;
	int gpu = vgpu_meter_gpu(meter);
	uint64_t held_bytes, wanted;
	struct reading reading;
	bool graphs_shrank, ends;

	*delta_bytes = 0;
	if (!look_and_lock(meter, &reading))
		return reading.known;
	if (!reading.known) /* assume the worst case until the driver reports again */
		reading.bytes = meter->latest_bytes + done_bytes;
	graphs_shrank =
	    reading.bytes < meter->latest_bytes && vgpu_meter_state(meter) == VGPU_METER_GRAPHS;
	__atomic_store_n(&meter->readings, meter->readings + 1, __ATOMIC_RELAXED);
	meter->latest_bytes = reading.bytes;
	__atomic_store_n(&meter->pending_bytes, meter->pending_bytes - done_bytes,
			 __ATOMIC_RELAXED);
	held_bytes = meter->held_bytes;
	wanted = wanted_bytes(meter);
	if (wanted != held_bytes)
		vgpu_meter_set_held(meter, wanted);
	ends = go_out(meter);
	vgpu_unlock(&meter->lock);
	*delta_bytes = (int64_t)(wanted - held_bytes);
	if (__builtin_expect(wanted != held_bytes || ends || graphs_shrank, 0))
		follow(gpu, ends ? pool : NULL, graphs_shrank, *delta_bytes);
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
	if (vgpu_meter_enter(meter, 0))
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

/* Announce the call instead of reserving (vgpu_growing_begin), because a pool's unused memory
 * suffices for most calls. If the pool grows by more than fits the limit, the wrapper undoes the
 * call. */
static bool may_grow(struct vgpu_growth *growth, uint64_t bytes)
{
	if (bytes > VGPU_CHUNK_BYTES || vgpu_meter_state(growth->meter) != VGPU_METER_POOL)
		return false;
	growth->growing = vgpu_growing_begin(growth->reservation.place.gpu);
	return growth->growing;
}

/* True if any call on that GPU is in progress. Its end may return the chunk that it reserved. */
static bool any_pending(int gpu)
{
	struct vgpu_meter *meter;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (vgpu_meter_gpu(meter) == gpu &&
		    __atomic_load_n(&meter->pending_bytes, __ATOMIC_RELAXED))
			return true;
	return false;
}

/* Try again before a refusal. First make the driver release what pools hold unused. Then wait for
 * other threads' calls, whose end may return reserved chunks. */
static bool reserve_at_last(struct vgpu_growth *growth, uint64_t bytes)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	int gpu = growth->reservation.place.gpu;

	if (!vgpu_may_ever_fit(gpu, bytes))
		return false;
	if (vgpu_meters_trim(gpu) && reserve_growth(growth, bytes))
		return true;
	for (int pauses = 0; pauses < MAX_PAUSES && any_pending(gpu); pauses++) {
		syscall(SYS_nanosleep, &pause, NULL);
		if (reserve_growth(growth, bytes))
			return true;
	}
	return false;
}

CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out)
{
	*out = (struct vgpu_growth){.meter = meter,
				    .reservation.place = {.gpu = vgpu_meter_gpu(meter)}};
	if (vgpu_meter_gpu(meter) == VGPU_GPU_NOT_GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (vgpu_meter_gpu(meter) >= 0 && bytes && !may_grow(out, bytes) &&
	    !reserve_growth(out, bytes) && !is_capturing(capturing) && !reserve_at_last(out, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!vgpu_meter_enter(meter, out->reservation.bytes)) {
		vgpu_cancel(&out->reservation);
		if (out->growing)
			vgpu_growing_end(out->growing);
		return CUDA_ERROR_INVALID_VALUE;
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
	known = settle(growth->meter, growth->reservation.bytes, &delta_bytes) || gpu < 0;
	if (growth->growing)
		vgpu_growing_end(growth->growing);
	if (delta_bytes > 0 && growth->reservation.bytes > VGPU_CHUNK_BYTES)
		__atomic_store_n(&whole_chunks, true, __ATOMIC_RELAXED);
	VGPU_AT(METER_CHARGED);
	return known && (delta_bytes <= 0 || gpu < 0 || vgpu_fits(gpu, 0));
}

void vgpu_meters_read_all(bool those_that_hold)
{
	struct vgpu_meter *meter;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (!those_that_hold || __atomic_load_n(&meter->held_bytes, __ATOMIC_RELAXED))
			vgpu_meter_read(meter);
}

bool vgpu_meters_moved(int gpu)
{
	vgpu_meters_read_all(false);
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
	if (!vgpu_meter_enter(meter, 0))
		return false;
	vgpu_meter_trimmed(meter);
	return vgpu_meter_leave(meter) < 0;
}

bool vgpu_meters_trim(int gpu)
{
	struct vgpu_meter *meter;
	bool gained = false;
	uint32_t at = 0;

	if (!__atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED))
		return false;
	while ((meter = vgpu_meter_next(&at)))
		if (vgpu_meter_gpu(meter) == gpu &&
		    __atomic_load_n(&meter->held_bytes, __ATOMIC_RELAXED))
			gained |= vgpu_meter_trim(meter);
	return gained;
}
