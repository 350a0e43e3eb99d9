/*
 * The table of meters, for meters.c and meter_table.c. Each meter represents one pool or one GPU's
 * graphs, and has the amount that is charged for it.
 *
 * A meter's lock covers all its fields. `state`, `pool`, `gpu`, `held_bytes` and `pending_bytes`
 * are also read without the lock: when a meter is reused, its pool is set before its state.
 */
#pragma once

#include "loader/hooks.h"
#include "os/fork_wiped.h"
#include "os/lock.h"
#include "vgpu/region.h"

enum { VGPU_METERS = 1024 };

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
	CUdevice device;	/* of graphs */
	uint32_t users;		/* threads between enter and leave */
	uint64_t held_bytes;	/* charged: the driver's figure, and calls in progress */
	uint64_t pending_bytes; /* reserved by calls in progress */
	uint64_t latest_bytes;	/* the driver's figure at the last reading */
	uint64_t readings;	/* number of readings so far */
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

/* The meter of a known pool, or NULL. */
struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool);
/* True if the program destroyed the pool, but an allocation still keeps it in existence. */
bool vgpu_meter_outlives(CUmemoryPool pool);
/* Enter a pool. NULL: the table is full. */
struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int gpu);
/* The meter of the GPU's current pool, or NULL. */
struct vgpu_meter *vgpu_meter_current(int gpu);
/* The current pool may have changed: the next use queries the driver. */
void vgpu_meter_current_changed(int gpu);
/* The meter of the graph memory of a GPU, or NULL. */
struct vgpu_meter *vgpu_meter_graphs(int gpu);

int vgpu_meter_gpu(const struct vgpu_meter *meter);

/* Iterate from *at = 0 over the meters that may be in use. NULL: there are no more. */
struct vgpu_meter *vgpu_meter_next(uint32_t *at);

/* Find a device that lies on the GPU. False: the program sees none. */
bool vgpu_meter_device(int gpu, CUdevice *device);

/* Query the bytes that the driver has reserved for the pool or the graphs. */
bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes);
