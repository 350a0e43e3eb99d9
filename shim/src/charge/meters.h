/*
 * Meters: memory whose amount the driver reports only after it took it.
 *
 * A pool takes memory of the GPU in chunks of its own size, and releases them at its own
 * discretion. So do the graphs of a device. A meter represents one pool or one device's graphs: it
 * can query the reserved amount, and knows how much is charged. A call that may take more reserves
 * its maximum, and after the call the charge is set to the driver's figure. Calls that may release
 * memory read the meters again. No context owns this memory. No lock is held during a driver call,
 * so of two readings the one that began later counts.
 *
 * The table is bounded. When it is full, no further pool can be created or imported. A fork child
 * begins with an empty table.
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
	uint64_t *growing; /* the announcement, if nothing is reserved */
};

/*
 * Before the call: reserve or announce the growth by `bytes`, which is 0 for a call that takes
 * nothing new. `capturing` is the call's stream (vgpu_own_stream). After CUDA_SUCCESS
 * vgpu_growth_end must follow. CUDA_ERROR_OUT_OF_MEMORY: it does not fit.
 */
CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out);
/* After the call, whatever its result: charge what the meter grew by. False: the growth exceeds the
 * reservation and does not fit, or is unknown. It stays charged until the caller has undone the
 * call. */
bool vgpu_growth_end(struct vgpu_growth *growth);

/* Read all meters and refund what the driver has released. This costs little if all are empty. */
extern uint32_t vgpu_meters_live;
void vgpu_meters_read_all(bool those_that_hold);
static inline void vgpu_meters_read(void)
{
	if (__atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED))
		vgpu_meters_read_all(true);
}

/* A call may have taken from a pool that became current while it ran: read all meters. False: the
 * charge now exceeds the limit. */
bool vgpu_meters_moved(int gpu);

/* Before a refusal: make the driver release what this process's pools and graphs on the GPU, or one
 * meter alone, hold unused. True if anything was released. */
bool vgpu_meters_trim(int gpu);
bool vgpu_meter_trim(struct vgpu_meter *meter);

/* The driver's cuDeviceGraphMemTrim. Later launches must reserve again what it released. */
CUresult vgpu_trim_graphs(CUdevice device, int gpu);

/* Set what is charged for the meter. The caller holds the meter's lock. */
void vgpu_meter_set_held(struct vgpu_meter *meter, uint64_t bytes);

/* Enter the meter before the driver is called for it, and leave it after. While any thread is
 * inside, the driver keeps the pool. `bytes` are reserved for the call, and count as held from now
 * on. False: the pool does not exist. Leaving charges the driver's current figure, and returns the
 * change in bytes. vgpu_meter_read enters and leaves. */
bool vgpu_meter_enter(struct vgpu_meter *meter, uint64_t bytes);
int64_t vgpu_meter_leave(struct vgpu_meter *meter);
void vgpu_meter_read(struct vgpu_meter *meter);

/* Make the driver release what is unused. The calling thread has entered the meter. */
void vgpu_meter_trimmed(const struct vgpu_meter *meter);
