/*
 * The check before each launch: it waits for the container's window on the GPU, and measures work.
 *
 *	struct vgpu_launch launch;
 *	vgpu_launch_begin(&launch, stream, handle, size);
 *	result = the driver's call;
 *	vgpu_launch_end(&launch);
 *
 * No lock is held between begin and end. Work that is recorded by a capture does not wait and is
 * not measured. A wait ends after at most VGPU_LONGEST_WAIT_NS, whatever the leases say. If no
 * container of the GPU has a cap, the check is one load from memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease_file.h"
#include "vgpu/cuda_abi.h"

#define VGPU_LONGEST_WAIT_NS UINT64_C(30000000000)

struct vgpu_launch {
	int gpu;  /* negative: the launch is not checked */
	int slot; /* the marker to record around the launch, or VGPU_NO_MARKER */
	CUstream stream;
	uint64_t event, begun_ns; /* the marker's; when its first event was recorded */
};

void vgpu_launch_wait(struct vgpu_launch *launch, CUstream stream, uint64_t handle, uint64_t size);
void vgpu_launch_mark(struct vgpu_launch *launch);

/* `handle` and `size` identify the kind of launch: launches of one kind cost about the same. */
static inline void vgpu_launch_begin(struct vgpu_launch *launch, CUstream stream, uint64_t handle,
				     uint64_t size)
{
	launch->gpu = -1;
	if (vgpu_launches_are_checked())
		vgpu_launch_wait(launch, stream, handle, size);
}

static inline void vgpu_launch_end(struct vgpu_launch *launch)
{
	if (__builtin_expect(launch->gpu >= 0 && launch->slot >= 0, 0))
		vgpu_launch_mark(launch);
}

/* Call it before the program waits for the GPU. Pass the result to vgpu_launches_wait_ended. */
uint64_t vgpu_launches_wait_begins(void);

/* Call it after the wait for the stream, or for all streams of the current context. `done`: all
 * work for which the program waited is done. */
void vgpu_launches_wait_ended(uint64_t since_ns, CUstream stream, bool all, bool done);

/* Call it when a query of the program has found work unfinished. */
void vgpu_launches_continue(void);
