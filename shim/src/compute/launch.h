/*
 * The check before each launch: waits for the container's window on the GPU, and measures.
 *
 *	struct vgpu_launch launch;
 *	vgpu_launch_begin(&launch, stream, handle, size);
 *	result = the driver's call;
 *	vgpu_launch_end(&launch);
 *
 * No lock is held meanwhile. Work that a capture records neither waits nor is charged. A wait ends
 * after at most VGPU_LONGEST_WAIT_NS, whatever the leases say. Where no container has a cap,
 * a launch costs one load.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease_file.h"
#include "vgpu/cuda_abi.h"

#define VGPU_LONGEST_WAIT_NS UINT64_C(30000000000)

struct vgpu_launch {
	int gpu;  /* negative: not checked */
	int slot; /* of the marker to record after it */
	CUstream stream;
};

void vgpu_launch_wait(struct vgpu_launch *launch, CUstream stream, uint64_t handle, uint64_t size);
void vgpu_launch_mark(struct vgpu_launch *launch);

/* Launches of one handle and size cost about the same. */
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
 * A call of the program that waits for the stream begins, or for all streams of the current
 * context; the result is for vgpu_launches_wait_ended. The driver waits without a bound, and no
 * other thread may ever poll: so the end of a first launch of its kind is awaited here, for at most
 * a second, which shows that it is a long one.
 */
uint64_t vgpu_launches_wait_begins(CUstream stream, bool all);

/* It has returned; `done`: all that work is done. */
void vgpu_launches_wait_ended(uint64_t since_ns, CUstream stream, bool all, bool done);

/* A query of the program found unfinished work. */
void vgpu_launches_continue(void);
