/*
 * Meters, for memory whose amount is known only after the driver has taken it.
 *
 * The driver takes memory for a pool in chunks, and decides when to release them. It treats the
 * graphs of a device likewise. A meter represents one pool or one device's graphs. It has the
 * amount that is charged for them. A call that may take memory reserves the most that it can take.
 * After the call the charge is set to the driver's figure. After a call that may release memory,
 * the meters are read again. No context owns this memory. No lock is held during a driver call, so
 * of two readings the one that began later counts.
 *
 * Far from the limit a pool that is used often has the GPU's float, VGPU_FLOAT_BYTES that are
 * charged beyond the driver's figure (docs/adr/0063). The float covers small requests, which then
 * need neither a reservation nor a reading.
 *
 * When the table of meters is full, no further pool can be created or imported. A fork child begins
 * with an empty table.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"
#include "charge/meter_table.h"

/* One call that may make a meter grow. */
struct vgpu_growth {
	struct vgpu_meter *meter;
	struct vgpu_reservation reservation;
	uint64_t covered_bytes; /* what the float covers of the request; 0: nothing */
};

#define VGPU_CHUNK_BYTES (UINT64_C(32) << 20)
#define VGPU_FLOAT_BYTES (2 * VGPU_CHUNK_BYTES)

/* Cover or reserve growth by a request of `bytes` before a driver call. `bytes` is 0 for a call
 * that takes nothing new. `capturing` is the call's stream (vgpu_own_stream). After CUDA_SUCCESS
 * vgpu_growth_end must follow. CUDA_ERROR_OUT_OF_MEMORY: the growth does not fit. */
CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out);
/* Charge the actual growth after the driver call, whatever the call's result. False: the use now
 * exceeds the limit, or the growth is unknown. The growth stays charged until the caller has undone
 * the call. */
bool vgpu_growth_end(struct vgpu_growth *growth);

/* Read the meters that hold memory, and refund what the driver has released: before a report, and
 * after a call in which the driver may have noticed the end of work. Up to 64 calls in a row for
 * the same `handle` do nothing unless a request or a free (vgpu_meters_changed) has changed a pool.
 * NULL: always read. */
void vgpu_meters_changed(void);
void vgpu_meters_read(const void *handle);

/* Read all meters, because a call may have taken from a pool that became current during the call.
 * False: the charge now exceeds the limit. */
bool vgpu_meters_moved(int gpu);

/* Make the driver release what is unused, before a refusal: of one meter, or of this process's
 * pools and graphs on the GPU. The float is given up too. True if anything was released. */
bool vgpu_meters_trim(int gpu);
bool vgpu_meter_trim(struct vgpu_meter *meter);

/* Call cuDeviceGraphMemTrim. Later launches must reserve again what the call released. */
CUresult vgpu_trim_graphs(CUdevice device, int gpu);

/* Set what is charged for the meter. The caller holds the meter's lock. */
void vgpu_meter_set_held(struct vgpu_meter *meter, uint64_t bytes);

/* Enter the meter before a driver call on its pool, and leave it after the call. Until all threads
 * have left, the driver keeps the pool. `bytes` are the call's reservation, which the meter's
 * charge includes from now on. `covered_bytes` are what the float must cover instead. False: the
 * pool does not exist, or its float has no room. vgpu_meter_leave charges the driver's current
 * figure, and returns the change in bytes. vgpu_meter_read enters and leaves. */
bool vgpu_meter_enter(struct vgpu_meter *meter, uint64_t bytes, uint64_t covered_bytes);
int64_t vgpu_meter_leave(struct vgpu_meter *meter);
void vgpu_meter_read(struct vgpu_meter *meter);

/* Make the driver release the pool's unused memory. The calling thread has entered the meter. */
void vgpu_meter_trimmed(const struct vgpu_meter *meter);
