/*
 * The table of meters, for meters.c and meter_table.c: which pool or GPU's graphs each represents,
 * and how much of it is charged.
 *
 * A meter's lock covers all its fields. `state`, `pool`, `gpu`, `held_bytes` and `pending_bytes`
 * are also read without it: when a meter is reused, its pool is set before its state.
 */
#ifndef VGPU_METER_TABLE_H
#define VGPU_METER_TABLE_H

#include "charge/meters.h"
#include "loader/hooks.h"
#include "os/lock.h"
#include "os/wiped.h"
#include "vgpu/region.h"

enum vgpu_meter_state {
	VGPU_METER_NONE,
	VGPU_METER_POOL,
	VGPU_METER_DESTROYED, /* by the program; the driver still has it */
	VGPU_METER_GRAPHS,
};

struct vgpu_meter {
	struct vgpu_lock lock;
	uint32_t state;
	uint64_t pool; /* the handle */
	int32_t gpu;
	CUdevice device;	 /* of graphs */
	uint32_t users;		 /* threads that may call the driver for it */
	uint64_t held_bytes;	 /* charged: the driver's, and calls in progress */
	uint64_t pending_bytes;	 /* reserved by calls in progress */
	uint64_t latest_bytes;	 /* the driver's figure, as last read */
	uint64_t exported_bytes; /* of it, charged to shared slots */
	uint64_t readings;	 /* entered so far */
};

static inline uint32_t vgpu_meter_state(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE);
}

static inline bool vgpu_meter_is(const struct vgpu_meter *meter, uint64_t pool,
				 enum vgpu_meter_state state)
{
	return vgpu_meter_state(meter) == state &&
	       __atomic_load_n(&meter->pool, __ATOMIC_ACQUIRE) == pool;
}

/* Iterate from *at = 0 over the meters that may be in use; NULL: no more. */
struct vgpu_meter *vgpu_meter_next(uint32_t *at);

/* A device that lies on the GPU; false: the program sees none. */
bool vgpu_meter_device(int gpu, CUdevice *device);

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
void vgpu_meter_have_trimmed(const struct vgpu_meter *meter);

/* The driver's figure. */
bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes);

#endif
