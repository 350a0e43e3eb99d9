/*
 * Limits from the environment, as the processes of a container share them.
 *
 * The region itself, at CUDA_DEVICE_MEMORY_SHARED_CACHE, has an entry for each GPU that a process
 * has met, with the limit from that process's environment. That limit applies to all processes
 * until none of them exists; the next one then sets its own. A process that uses the GPU keeps the
 * limit that it found. This is cooperation, not enforcement: a user that can set a variable can
 * start without it.
 */
#pragma once

#include "region/process.h"
#include "vgpu/region.h"

/* Make the region if there is none, and map it; the caller holds setup. */
enum vgpu_result vgpu_limits_poll(struct vgpu_process *process, struct vgpu_error *error);

/* The index of a GPU met for the first time; -1: not listed, no entry, or no descriptor. */
int vgpu_limits_register(const uint8_t uuid[16], int number);
