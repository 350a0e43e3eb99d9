/*
 * Limits from the environment, shared by the processes of a container.
 *
 * The region, at the path CUDA_DEVICE_MEMORY_SHARED_CACHE, has an entry for each GPU that a process
 * has used. Its limit is from that process's environment. It applies to all processes until none of
 * them exists any more. The next process then sets its own limit. A process that uses the GPU keeps
 * the limit that it found. This serves programs that cooperate, and does not enforce: a user that
 * can set a variable can also start a program without it.
 */
#pragma once

#include "region/process.h"
#include "vgpu/region.h"

/* Make the region if there is none, and map it. The caller holds `setup`. */
enum vgpu_result vgpu_limits_poll(struct vgpu_process *process, struct vgpu_error *error);

/* Enter a GPU at its first use. Return its index. -1: not listed, no free entry, no descriptor. */
int vgpu_limits_register(const uint8_t uuid[16], int number);
