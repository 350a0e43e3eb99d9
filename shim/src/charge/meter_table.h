/*
 * The table of meters, for meters.c and meter_table.c: which pool or GPU's graphs each represents,
 * and how much of it is charged.
 *
 * A meter's lock covers all its fields. `state`, `pool`, `gpu`, `held_bytes` and `pending_bytes`
 * are also read without it: when a meter is reused, its pool is set before its state.
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
	uint32_t users;		/* threads that may call the driver for it */
	uint64_t held_bytes;	/* charged: the driver's, and calls in progress */
	uint64_t pending_bytes; /* reserved by calls in progress */
	uint64_t latest_bytes;	/* the driver's figure, as last read */
	uint64_t readings;	/* entered so far */
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

/* The meter of a known pool; else NULL. */
struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool);
/* The program has destroyed the pool, which exists until its last allocation is freed. */
bool vgpu_meter_outlives(CUmemoryPool pool);
/* Enter a pool; NULL if the table is full. */
struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int gpu);
/* The meter of the GPU's current pool, or NULL. */
struct vgpu_meter *vgpu_meter_current(int gpu);
/* The current pool may have changed: query the driver at the next use. */
void vgpu_meter_current_changed(int gpu);
/* The meter of the graph memory of a GPU, or NULL. */
struct vgpu_meter *vgpu_meter_graphs(int gpu);

int vgpu_meter_gpu(const struct vgpu_meter *meter);

/* Iterate from *at = 0 over the meters that may be in use; NULL: no more. */
struct vgpu_meter *vgpu_meter_next(uint32_t *at);

/* A device that lies on the GPU; false: the program sees none. */
bool vgpu_meter_device(int gpu, CUdevice *device);

/* The driver's figure. */
bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes);
