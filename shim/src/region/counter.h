/*
 * The protocol of a GPU's counter in a mapped region: add to a charge, subtract from it, or drop an
 * exited process's charge.
 *
 * The protocol uses only words of the region, without locks or system calls. If a process exits
 * within an operation, after any instruction, the next process completes or discards the operation.
 * docs/adr/0002 has the proof.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

/* A mapped region whose layout has been checked. */
struct vgpu_view {
	char *base;
	uint64_t slots_offset;
	uint32_t slot_stride;
	int gpu_count;
};

enum vgpu_applied {
	VGPU_APPLIED,
	VGPU_REFUSED, /* over the limit; no charge changed */
	VGPU_LOST     /* another process assumed that this one had exited, and took the slot or its
			 charge */
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

/* Add bytes to the charge of `owner`, unless the container's charge on the GPU would then exceed
 * limit_bytes. Or subtract bytes, but at most the owner's charge; any excess is counted in the
 * statistics. The caller holds a lock, so that a slot has one operation at a time on a GPU. */
enum vgpu_applied vgpu_counter_change(const struct vgpu_view *view, int gpu,
				      const struct vgpu_owner *owner, bool adding, uint64_t bytes,
				      uint64_t limit_bytes);

/* Drop the whole charge of an exited process's slot, if the slot still has this generation. Several
 * processes may do so at once, without a lock. Returns the bytes that this call dropped.
 * even_empty: give the slot a new sequence number even if nothing is charged, because the slot is
 * about to be taken. If the last owner still runs, its published operation is then never
 * counted. */
uint64_t vgpu_counter_drop(const struct vgpu_view *view, int gpu, const struct vgpu_owner *owner,
			   bool even_empty);

uint64_t vgpu_counter_used_bytes(const struct vgpu_view *view, int gpu);

/* The slot's charge, without an operation that is in the counter but not yet in the slot. */
uint64_t vgpu_counter_charged_bytes(const struct vgpu_view *view, int gpu, uint32_t slot);
