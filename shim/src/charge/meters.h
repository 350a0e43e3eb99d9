/*
 * Meters: memory whose amount the driver reports only after it took it.
 *
 * A pool takes chunks of the GPU's memory, of a size of its own, and releases them at its own
 * discretion; so do the graphs of a device. A meter represents each: how to query the reserved
 * amount, and how much of it is charged. A call that may take more reserves its maximum first, and
 * settles by the driver's figure after it; calls that may release memory read the meters again. No
 * context owns this memory, and no lock is held during a driver call: of two readings the one that
 * began later counts.
 *
 * The table is bounded: when it is full, no further pool can be created or imported. A fork child
 * begins with an empty one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"
#include "charge/meter_table.h"

/* One call that may make a meter grow; `capturing`: its stream, under that stream's own name. */
struct vgpu_growth {
	struct vgpu_meter *meter;
	struct vgpu_reservation reservation;
	uint64_t *growing; /* in place of a reservation */
};

/*
 * Before the call: reserve what `bytes` may make the meter grow by; 0 for a call that takes nothing
 * new. After CUDA_SUCCESS end must follow. CUDA_ERROR_OUT_OF_MEMORY: it does not fit.
 */
CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out);
/* After it, whatever its result: charge what the meter grew by. False: that exceeds the reservation
 * and does not fit, or the driver does not report; it stays charged until the call is undone. */
bool vgpu_growth_end(struct vgpu_growth *growth);

/* Read all meters and refund what the driver has released. Negligible cost if all meters are
 * empty. */
extern uint32_t vgpu_meters_live;
void vgpu_meters_read_all(bool those_that_hold);
static inline void vgpu_meters_read(void)
{
	if (__atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED))
		vgpu_meters_read_all(true);
}

/* A call took from another pool than the one current when it began: charge the right one. False:
 * the charge now exceeds what fits. */
bool vgpu_meters_moved(int gpu);

/* Before a refusal: have the driver release what this process's pools and graphs hold unused on the
 * GPU; true if that was anything. And the same for one meter. */
bool vgpu_meters_trim(int gpu);
bool vgpu_meter_trim(struct vgpu_meter *meter);

/* The driver's cuDeviceGraphMemTrim. The next launches have to reserve again what it released. */
CUresult vgpu_trim_graphs(CUdevice device, int gpu);

/* With the meter's lock: what is charged for it. */
void vgpu_meter_set_held(struct vgpu_meter *meter, uint64_t bytes);

/* Before and after the driver is called for the meter: while any thread is inside, the driver
 * keeps the pool. `bytes` are reserved by the call, and held from here on. False: the pool does
 * not exist. Leaving charges the driver's current figure, and returns the difference. Or both at
 * once. */
bool vgpu_meter_enter(struct vgpu_meter *meter, uint64_t bytes);
int64_t vgpu_meter_leave(struct vgpu_meter *meter);
void vgpu_meter_read(struct vgpu_meter *meter);

/* Have the driver release what nothing uses. The calling thread is inside. */
void vgpu_meter_trimmed(const struct vgpu_meter *meter);
