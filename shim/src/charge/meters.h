/*
 * Meters: memory whose amount the driver tells only after it took it.
 *
 * A pool takes chunks of the GPU's memory, of a size of its own, and gives them back when it sees
 * fit; so do the graphs of a device. One meter stands for each: how to ask the driver what is
 * reserved, and how much of that is charged. A call that may take more reserves first what it may
 * take, and settles after it by what the driver then has; calls that may give back read the meters
 * again. No context owns what they stand for, and no lock is held while the driver is called: of
 * two readings the one that began later counts.
 *
 * The table is bounded: where it is full, no further pool can be created or imported. A fork child
 * begins with an empty one.
 */
#ifndef VGPU_METERS_H
#define VGPU_METERS_H

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"

enum { VGPU_METERS = 1024 };

struct vgpu_meter;

/* The meter of a pool that is known; NULL: it is not. */
struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool);
/* The program has destroyed the pool, which lives on for what is allocated from it. */
bool vgpu_meter_outlives(CUmemoryPool pool);
/* Make a pool known; NULL where the table is full. */
struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int gpu);
/* The meter of the GPU's current pool, or NULL. */
struct vgpu_meter *vgpu_meter_current(int gpu);
/* Another pool may be current now: the driver is asked at the next need. */
void vgpu_meter_current_changed(int gpu);
/* The meter of the graph memory of a GPU, or NULL. */
struct vgpu_meter *vgpu_meter_graphs(int gpu);

int vgpu_meter_gpu(const struct vgpu_meter *meter);

/* One call that may make a meter grow; `capturing`: its stream, under that stream's own name. */
struct vgpu_growth {
	struct vgpu_meter *meter;
	struct vgpu_reservation reservation;
	uint64_t *growing; /* in place of a reservation */
};

/*
 * Before the call: reserve what `bytes` may make the meter grow by; 0 of a call that takes nothing
 * new. After CUDA_SUCCESS end must follow. CUDA_ERROR_OUT_OF_MEMORY: it does not fit.
 */
CUresult vgpu_growth_begin(struct vgpu_meter *meter, uint64_t bytes, CUstream capturing,
			   struct vgpu_growth *out);
/* After it, whatever came of it: charge what the meter grew by. False: that is more than was
 * reserved and than fits, or the driver does not say; it is charged all the same until the call is
 * undone. */
bool vgpu_growth_end(struct vgpu_growth *growth);

/* So much of the pool has moved to a shared slot, with its charge; and is the pool's again, which
 * charges it anew. */
void vgpu_meter_exported(struct vgpu_meter *meter, uint64_t bytes);
void vgpu_meter_unexported(struct vgpu_meter *meter, uint64_t bytes);

/* Read all meters: what the driver has given back is refunded. Of next to no cost where no meter
 * has anything. */
extern uint32_t vgpu_meters_live;
void vgpu_meters_read_all(bool those_that_hold);
static inline void vgpu_meters_read(void)
{
	if (__atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED))
		vgpu_meters_read_all(true);
}

/* A call took from another pool than the one that was current when it began: charge whichever it
 * was. False: more is charged now than fits. */
bool vgpu_meters_moved(int gpu);

/* Before a refusal: have the driver give back what this process's pools and graphs hold unused on
 * the GPU; true if that was anything. And the same of one meter. */
bool vgpu_meters_trim(int gpu);
bool vgpu_meter_trim(struct vgpu_meter *meter);

/* The driver's cuDeviceGraphMemTrim. What it gave back the next launches have to reserve anew. */
CUresult vgpu_trim_graphs(CUdevice device, int gpu);

/* The program destroyed the pool: now, or as soon as nothing of it is in use. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool);

/* The driver has reset the device: its pools are gone, those that the program made as well. */
void vgpu_meters_forget(CUdevice device);

#endif
