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

/* The state of this process, or NULL if it has mapped no region, or a region without that GPU. */
static inline struct vgpu_process *vgpu_process_with(int gpu)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) && gpu >= 0 && gpu < process->view.gpu_count
		   ? process
		   : NULL;
}

/* Map the region at `path`, once. The caller holds `setup`. */
enum vgpu_result vgpu_map_region(struct vgpu_process *process, const char *path, int *os_errno);

/* Open the mapped region's file again, and set slots->fd to the descriptor. The descriptor is
 * negative if the file cannot be opened, or the path now has another file. */
enum vgpu_result vgpu_reopen(const struct vgpu_process *process, struct vgpu_slots *slots,
			     struct vgpu_error *error);
void vgpu_close(const struct vgpu_slots *slots);

/* Attach again, after another process wrongly assumed that this one had exited, and took its slot.
 */
enum vgpu_result vgpu_attach_again(struct vgpu_process *process);

/* State the float in this process's slot. Charge what the process holds to its new slot, after
 * another process took the old one. The limit is not checked again. The caller holds the GPU's
 * lock, or the slot is not in use yet. */
void vgpu_recharge(struct vgpu_process *process, int gpu);

/* Map the anchor of a slot that is locked by `fd` (attach.c). The lock lasts until the page is
 * unmapped. No child inherits the page. NULL: see errno. */
enum { VGPU_ANCHOR_MAPPED_BYTES = 4096 };
void *vgpu_anchor_cast(int fd, uint32_t slot);
