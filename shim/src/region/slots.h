/*
 * The slots of the region: takes and frees slots, and finds those of exited processes.
 *
 * A slot's state, generation and identity change only under the slot's lock (slot_lock.h). An
 * exited process's charge is dropped without any lock. No function waits: a locked slot is skipped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/identity.h"
#include "region/counter.h"

/* The mapped region, and a descriptor of its file, by which locks are taken and tested. */
struct vgpu_slots {
	const struct vgpu_view *view;
	int fd;
	const struct vgpu_identity *self;
};

static inline uint64_t vgpu_slot_generation(const struct vgpu_region_slot *slot)
{
	return __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
}

static inline uint32_t vgpu_slot_state(const struct vgpu_region_slot *slot)
{
	return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
}

/* A thorough search also tests whether the pid of a locked slot's holder has been reused. */
enum vgpu_search { VGPU_SEARCH_QUICK, VGPU_SEARCH_THOROUGH };

/* Drop the charges of exited processes, and free their slots. `except` is left out, and may be
 * NULL. Each running process costs two system calls, and in a thorough search three reads of
 * files. */
void vgpu_slots_reap(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		     enum vgpu_search search);

/* The search of a process that attaches: all slots if they are few, otherwise some. Also reclaim
 * all slots with this process's own pid, which are from before exec or have lost their lock. */
void vgpu_slots_reap_at_start(const struct vgpu_slots *slots);

/* The offset, beyond the file's end, at which the slot's holder maps its anchor (attach.c). */
static inline uint64_t vgpu_slots_anchor_offset(uint32_t slot)
{
	return VGPU_ANCHOR + (uint64_t)slot * VGPU_ANCHOR_BYTES;
}

/* Take the lowest free slot, lock it, and set its state. The lock ends with slots->fd, so the
 * caller maps the anchor (attach.c) before closing the descriptor. False: no slot is free. */
bool vgpu_slots_claim(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state);

/* For shared slots (shared.c). An exporter takes a free slot, charges it, and offers it by a key.
 * An importer finds the slot by the key, and joins it with a lock of its own. Each of them maps an
 * anchor, as for its own slot. The lock is exclusive until the slot is offered, and then shared. */
enum { VGPU_SHARED_SLOTS = VGPU_MAX_SLOTS / 2 }; /* the other slots are only for processes */
void vgpu_slots_offer(const struct vgpu_slots *slots, const struct vgpu_owner *owner, uint64_t key);
bool vgpu_slots_find_shared(const struct vgpu_slots *slots, uint64_t key, struct vgpu_owner *owner);
bool vgpu_slots_join(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint64_t key);

/* The identity of the slot's holder, as the slot states it. */
struct vgpu_identity vgpu_slots_holder(const struct vgpu_region_slot *slot);

/* Reclaim one slot, if it still has this generation and no holder. */
void vgpu_slots_reap_one(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Drop the slot's charges, if it still has this generation, and note the time of a drop. */
void vgpu_slots_drop(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Free the slot, if it still has this generation and its lock is free. */
void vgpu_slots_free(const struct vgpu_slots *slots, const struct vgpu_owner *owner);
