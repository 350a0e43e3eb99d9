/*
 * Limits from the environment, shared by the processes of a container.
 *
 * CUDA_DEVICE_MEMORY_SHARED_CACHE is the region's path. The region has an entry for each GPU that a
 * process has used. The first process that uses a GPU sets the entry's limit from its environment.
 * The limit applies to all processes until none is left. The next process then sets its own limit.
 * These limits serve programs that cooperate: a user that sets a variable can also start a program
 * without it.
 */
#pragma once

#include "region/process.h"
#include "vgpu/region.h"

/* Make the region if there is none, and map it. The caller holds `setup`. */
enum vgpu_result vgpu_limits_poll(struct vgpu_process *process, struct vgpu_error *error);

/* Enter a GPU at its first use, and return its index. -1: the GPU is not listed, no entry is free,
 * or the region's file cannot be opened. */
int vgpu_limits_register(const uint8_t uuid[16], int number);
