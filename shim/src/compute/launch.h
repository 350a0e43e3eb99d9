/*
 * The check before each launch: it waits for the container's window on the GPU, and measures work.
 *
 *	struct vgpu_launch launch;
 *	vgpu_launch_begin(&launch, stream, handle, size);
 *	result = the driver's call;
 *	vgpu_launch_end(&launch);
 *
 * No lock is held between begin and end. Work that is recorded by a capture does not wait and is
 * not charged. A wait ends after at most VGPU_LONGEST_WAIT_NS, whatever the leases say. Where no
 * container has a cap, a launch costs one load.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease_file.h"
#include "vgpu/cuda_abi.h"

#define VGPU_LONGEST_WAIT_NS UINT64_C(30000000000)

struct vgpu_launch {
	int gpu;  /* negative: the launch is not checked */
	int slot; /* of the marker to record after the launch */
	CUstream stream;
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

/*
 * The program begins to wait for the stream, or for all streams of the current context. Pass the
 * result to vgpu_launches_wait_ended. The driver's wait may be long, and perhaps no other thread
 * polls markers. So if the launch is the first of its kind, its end is polled for here, for at most
 * a second: after that it is known to be long.
 */
uint64_t vgpu_launches_wait_begins(CUstream stream, bool all);

/* The wait has returned. `done`: all work that it waited for is done. */
void vgpu_launches_wait_ended(uint64_t since_ns, CUstream stream, bool all, bool done);

/* The program has queried its work and found it unfinished. */
void vgpu_launches_continue(void);
