/* The mapped region as this process uses it, for attaching, reserving and sharing. */
#pragma once

#include <stdbool.h>

#include "region/process.h"
#include "region/slots.h"
#include "vgpu/region.h"

static inline bool vgpu_is_attached(const struct vgpu_process *process)
{
	return __atomic_load_n(&process->attached, __ATOMIC_ACQUIRE);
}

static inline bool vgpu_is_mapped(const struct vgpu_process *process)
{
	return __atomic_load_n(&process->mapped, __ATOMIC_ACQUIRE);
}

/* The region through a separate descriptor, if it is still the one that is mapped. */
enum vgpu_result vgpu_reopen(const struct vgpu_process *process, int *fd, int *os_errno);

/*
 * The process still holds what it held before another took it for exited; the limit was checked
 * then. The caller holds the GPU's lock, or the slot is not in use yet.
 */
void vgpu_recharge(struct vgpu_process *process, int gpu);

/*
 * Map the page that keeps the lock of that slot, which the description `fd` holds, for as long as
 * the page stays mapped; no child inherits it. NULL: see errno.
 */
enum { VGPU_ANCHOR_MAPPED_BYTES = 4096 };
void *vgpu_anchor_cast(int fd, uint32_t slot);
