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

/* This process, if it has mapped a region that has the GPU; else NULL. */
static inline struct vgpu_process *vgpu_process_with(int gpu)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) && gpu >= 0 && gpu < process->view.gpu_count
		   ? process
		   : NULL;
}

/* Map the region at `path`, once; the caller holds setup. */
enum vgpu_result vgpu_map_region(struct vgpu_process *process, const char *path, int *os_errno);

/* The region through a separate descriptor, if it is still the one that is mapped; else slots->fd
 * is negative. */
enum vgpu_result vgpu_reopen(const struct vgpu_process *process, struct vgpu_slots *slots,
			     struct vgpu_error *error);
void vgpu_close(const struct vgpu_slots *slots);

/* Attach again after another process took this one for exited and took its slot. */
enum vgpu_result vgpu_attach_again(struct vgpu_process *process);

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
