/* The mapped region as this process uses it to attach, reserve and share. */
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

/* This process, if it has mapped a region in which the GPU is. Otherwise NULL. */
static inline struct vgpu_process *vgpu_process_with(int gpu)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) && gpu >= 0 && gpu < process->view.gpu_count
		   ? process
		   : NULL;
}

/* Map the region at `path`, once. The caller holds `setup`. */
enum vgpu_result vgpu_map_region(struct vgpu_process *process, const char *path, int *os_errno);

/* Open the mapped region's file again, with a descriptor in slots->fd. It is negative if the path
 * now has another file. */
enum vgpu_result vgpu_reopen(const struct vgpu_process *process, struct vgpu_slots *slots,
			     struct vgpu_error *error);
void vgpu_close(const struct vgpu_slots *slots);

/* Attach again, after another process wrongly assumed that this one had exited, and took its slot.
 */
enum vgpu_result vgpu_attach_again(struct vgpu_process *process);

/* Charge the slot again for what this process holds, after another process took the slot: the limit
 * was checked before. The caller holds the GPU's lock, or the slot is not in use yet. */
void vgpu_recharge(struct vgpu_process *process, int gpu);

/* Map the page that keeps the slot's lock, which belongs to the description of `fd`, as long as the
 * page stays mapped. No child inherits the page. NULL: see errno. */
enum { VGPU_ANCHOR_MAPPED_BYTES = 4096 };
void *vgpu_anchor_cast(int fd, uint32_t slot);
