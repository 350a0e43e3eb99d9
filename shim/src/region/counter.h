/*
 * The counter's protocol over a mapped region: apply an operation, drop an exited process's charge.
 *
 * Uses the words of the region only; independent of files, processes and locks; makes no system
 * call. A process may exit after any instruction here: the next process completes or discards its
 * operation. docs/adr/0002 has the argument.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

/* A mapped region whose geometry has been checked. */
struct vgpu_view {
	char *base;
	uint64_t slots_offset;
	uint32_t slot_stride;
	int gpu_count;
};

enum vgpu_applied {
	VGPU_APPLIED,
	VGPU_REFUSED, /* over the limit; nothing changed */
	VGPU_LOST     /* the slot was taken: another process took this one for exited */
};

struct vgpu_owner {
	uint32_t slot;
	uint64_t generation;
};

#define VGPU_NO_LIMIT UINT64_MAX

static inline struct vgpu_region_gpu *vgpu_view_gpu(const struct vgpu_view *view, int gpu)
{
	return (struct vgpu_region_gpu *)(view->base + sizeof(struct vgpu_region_header)) + gpu;
}

static inline struct vgpu_region_slot *vgpu_view_slot(const struct vgpu_view *view, uint32_t slot)
{
	return (struct vgpu_region_slot *)(view->base + view->slots_offset +
					   (uint64_t)slot * view->slot_stride);
}

static inline struct vgpu_region_compute *vgpu_view_compute(const struct vgpu_view *view, int gpu)
{
	return (struct vgpu_region_compute *)(view->base + view->slots_offset +
					      (uint64_t)VGPU_MAX_SLOTS * view->slot_stride) +
	       gpu;
}

static inline struct vgpu_region_slot_gpu *vgpu_view_slot_gpu(const struct vgpu_view *view,
							      uint32_t slot, int gpu)
{
	return (struct vgpu_region_slot_gpu *)(vgpu_view_slot(view, slot) + 1) + gpu;
}

/*
 * Add bytes to the charge of `owner`, unless the GPU would then hold more than limit_bytes; or
 * subtract them: more than it holds is clamped and counted. One at a time per slot and GPU: the
 * caller holds the process's lock.
 */
enum vgpu_applied vgpu_counter_change(const struct vgpu_view *view, int gpu,
				      const struct vgpu_owner *owner, bool adding, uint64_t bytes,
				      uint64_t limit_bytes);

/*
 * Drop the whole charge of an exited process's slot, if it still is in this generation. Any number
 * of processes may do so at once, without a lock. Returns the bytes that this call dropped.
 * even_empty: for a slot that is about to be taken. It gets a new sequence number even if nothing
 * is charged: an operation that the last owner, taken for exited, has published and not yet counted
 * never will be.
 */
uint64_t vgpu_counter_drop(const struct vgpu_view *view, int gpu, const struct vgpu_owner *owner,
			   bool even_empty);

uint64_t vgpu_counter_used_bytes(const struct vgpu_view *view, int gpu);

/* The slot's charge, except for an operation that no process has helped yet. */
uint64_t vgpu_counter_charged_bytes(const struct vgpu_view *view, int gpu, uint32_t slot);
