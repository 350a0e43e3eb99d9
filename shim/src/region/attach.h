/* What attaching leaves for reserving: whether we are attached, and the region afresh. */
#ifndef VGPU_ATTACH_H
#define VGPU_ATTACH_H

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

/* The region through a description of one's own, if it still is the one that is mapped. */
enum vgpu_result vgpu_reopen(const struct vgpu_process *process, int *fd, int *os_errno);

/*
 * What we held before somebody took us for dead is held still; the limit was checked then. The
 * caller holds the GPU's lock, or the slot is not in use yet.
 */
void vgpu_recharge(struct vgpu_process *process, int gpu);

/* Write what the process holds of shared memory into its slot, for the agent. */
void vgpu_publish_imported(struct vgpu_process *process, int gpu);

/*
 * Map the page that keeps the lock of that slot, which the description `fd` holds, for as long as
 * the page stays mapped; no child inherits it. NULL: errno says why.
 */
enum { VGPU_ANCHOR_MAPPED_BYTES = 4096 };
void *vgpu_anchor_cast(int fd, uint32_t slot);

/* The process lets go of all shared memory (shared.c); the caller holds setup. */
void vgpu_shared_leave_all(struct vgpu_process *process, const struct vgpu_slots *slots);

/* Attach anew, where somebody held us for dead and took our slot. */
enum vgpu_result vgpu_attach_anew(struct vgpu_process *process);

#endif
