/*
 * The table of meters, for meters.c and meter_table.c. meters.h explains what a meter is.
 *
 * A meter's lock covers all its fields. `state`, `pool`, `gpu`, `held_bytes` and `pending_bytes`
 * are also read without the lock. For such readers a reused meter's pool is set before its state.
 */
#pragma once

#include "loader/hooks.h"
#include "os/fork_wiped.h"
#include "os/lock.h"
#include "vgpu/region.h"

enum { VGPU_METERS = 1024, VGPU_FLOAT_WAIT_CALLS = 64 };

enum vgpu_meter_state {
	VGPU_METER_NONE,
	VGPU_METER_POOL,
	VGPU_METER_DESTROYED, /* the program destroyed the pool, but the driver still has it */
	VGPU_METER_GRAPHS,
};

struct vgpu_meter {
	struct vgpu_lock lock;
	uint32_t state;
	uint64_t pool; /* the handle */
	int32_t gpu;
	CUdevice device;     /* only of a meter of graphs */
	uint32_t users;	     /* number of threads between vgpu_meter_enter and vgpu_meter_leave */
	uint64_t held_bytes; /* what is charged for the meter, with the float */
	uint64_t pending_bytes; /* what calls in progress have reserved */
	uint64_t latest_bytes;	/* the driver's figure at the last reading */
	uint64_t readings;	/* number of readings so far */
	/* The float (meters.h), and the sizes of the requests that it has covered so far: of all,
	 * of those that have ended, and of those that a reading certainly includes. */
	uint64_t float_bytes, begun_bytes, ended_bytes, read_bytes;
	uint32_t wait_calls; /* calls until the pool may have the float */
};

static inline uint32_t vgpu_meter_state(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE);
}

static inline int vgpu_meter_gpu(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->gpu, __ATOMIC_RELAXED);
}

static inline bool vgpu_meter_is(const struct vgpu_meter *meter, uint64_t pool,
				 enum vgpu_meter_state state)
{
	return vgpu_meter_state(meter) == state &&
	       __atomic_load_n(&meter->pool, __ATOMIC_ACQUIRE) == pool;
}

/* The pool's meter, or NULL if the pool is unknown. */
struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool);
/* True if the program destroyed the pool, but the driver still has it. */
bool vgpu_meter_outlives(CUmemoryPool pool);
/* The pool's meter, added if there is none. NULL: the table is full. */
struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int gpu);
/* The meter of the GPU's current pool, which serves cuMemAllocAsync, or NULL. */
struct vgpu_meter *vgpu_meter_current(int gpu);
/* Call it when the current pool may have changed. The next use then queries the driver. */
void vgpu_meter_current_changed(int gpu);
/* Let the meter have its GPU's float, before it is charged. The caller holds the meter's lock.
 * False: another meter has it. That meter will give it up soon. */
bool vgpu_meter_take_float(const struct vgpu_meter *meter);
/* Let other meters have the GPU's float, which its meter has given up and refunded. */
void vgpu_meter_drop_float(int gpu);
/* The meter of the graph memory of a GPU, or NULL. */
struct vgpu_meter *vgpu_meter_graphs(int gpu);

/* Iterate over the meters that may be in use. Set *at to 0 first. NULL: there are no more. */
struct vgpu_meter *vgpu_meter_next(uint32_t *at);

/* Find a device of the program that is that GPU. False: the program sees no such device. */
bool vgpu_meter_device(int gpu, CUdevice *device);

/* Query the bytes that the driver has reserved for the pool or the graphs. */
bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes);
