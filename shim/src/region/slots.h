/*
 * Slots of the region: their holders, finding exited processes, taking and freeing slots.
 *
 * A slot's state, generation and identity change only under its LIVE lock. An exited process's
 * charge is dropped without any lock. No function waits: a slot whose lock is held is skipped. This
 * file knows nothing of grants and limits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/identity.h"
#include "region/counter.h"

/* The region with a descriptor of its own. Locks taken by it belong to that description. */
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

/* THOROUGH: test also whether the pid of a lock's holder has been reused. */
enum vgpu_search { VGPU_SEARCH_QUICK, VGPU_SEARCH_THOROUGH };

/*
 * Drop the charges of exited processes and free their slots, except those of `except`, which may be
 * NULL. Each running process costs two system calls, and a thorough search also reads three files.
 */
void vgpu_slots_reap(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		     enum vgpu_search search);

/* For a process that begins: search all slots if they are few, otherwise some. Also reclaim all
 * slots with this process's own pid, from before exec or after its lock was lost. */
void vgpu_slots_reap_at_start(const struct vgpu_slots *slots);

/* The offset, beyond the file's end, at which the slot's holder maps its anchor (attach.c). */
static inline uint64_t vgpu_slots_anchor_offset(uint32_t slot)
{
	return VGPU_ANCHOR + (uint64_t)slot * VGPU_ANCHOR_BYTES;
}

/* Take the lowest free slot for that state. Its lock belongs to the open file description of
 * slots->fd, so map the anchor before closing that descriptor. False: no slot is free. */
bool vgpu_slots_claim(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state);

/*
 * For shared slots (shared.c): take a free one, charge it, then offer it by a key. Or find one by
 * its key, and join it with a lock of this process. Each holder maps an anchor, as for its own
 * slot. A taken slot is locked exclusively. Offering it makes the lock a shared one.
 */
enum { VGPU_SHARED_SLOTS = VGPU_MAX_SLOTS / 2 }; /* the others are for processes */
void vgpu_slots_offer(const struct vgpu_slots *slots, const struct vgpu_owner *owner, uint64_t key);
bool vgpu_slots_find_shared(const struct vgpu_slots *slots, uint64_t key, struct vgpu_owner *owner);
bool vgpu_slots_join(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint64_t key);

/* The identity of a slot's holder, as written in the slot. */
struct vgpu_identity vgpu_slots_holder(const struct vgpu_region_slot *slot);

/* Reclaim one slot, if it still has this generation and no holder. */
void vgpu_slots_reap_one(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Drop the slot's charges, if it still has this generation, and note the time. */
void vgpu_slots_drop(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Free the slot, if it still has this generation and its lock is free. */
void vgpu_slots_free(const struct vgpu_slots *slots, const struct vgpu_owner *owner);
