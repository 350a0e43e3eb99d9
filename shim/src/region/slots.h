/*
 * Slots of the region: their holders, exited processes, taking and freeing.
 *
 * A slot's state, generation and identity change only under its LIVE lock; an exited process's
 * charge is dropped without any lock. Never waits: a slot whose lock is held is skipped.
 * Independent of grants and limits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/identity.h"
#include "region/counter.h"

/* The region through a separate descriptor; locks taken through it belong to its description. */
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

/* A second test of a lock's holder: has its pid been reused? */
enum vgpu_search { VGPU_SEARCH_QUICK, VGPU_SEARCH_THOROUGH };

/*
 * Drop the charges of exited processes and free their slots, except `except` (may be NULL). A
 * running process costs two system calls, and three file reads with SEARCH_THOROUGH.
 */
void vgpu_slots_reap(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		     enum vgpu_search search);

/*
 * For a process that begins: all slots if they are few, else some of them, and all under its own
 * identity (before exec, or one that lost its lock).
 */
void vgpu_slots_reap_at_start(const struct vgpu_slots *slots);

/* Where, past the file's end, the holder of a slot maps its anchor (attach.c). */
static inline uint64_t vgpu_slots_anchor_offset(uint32_t slot)
{
	return VGPU_ANCHOR + (uint64_t)slot * VGPU_ANCHOR_BYTES;
}

/* Take the lowest free slot for that state; its lock stays with the open file description of
 * slots->fd. False: none. The caller maps the anchor before it closes slots->fd. */
bool vgpu_slots_claim(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state);

/*
 * Shared slots (shared.c): take a free one, charge it, then offer it; find one by its key, and join
 * it with a lock of this process. Each holder maps an anchor, as for its own slot. Claiming takes
 * the lock exclusively, offering makes it a shared one.
 */
enum { VGPU_SHARED_SLOTS = VGPU_MAX_SLOTS / 2 }; /* the others are for processes */
void vgpu_slots_offer(const struct vgpu_slots *slots, const struct vgpu_owner *owner, uint64_t key);
bool vgpu_slots_find_shared(const struct vgpu_slots *slots, uint64_t key, struct vgpu_owner *owner);
bool vgpu_slots_join(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint64_t key);

/* The holder of a slot, by its name in it. */
struct vgpu_identity vgpu_slots_holder(const struct vgpu_region_slot *slot);

/* One slot, if it still is in this generation and has no holder. */
void vgpu_slots_reap_one(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Drop the slot's charges, if it still is in this generation, and note when. */
void vgpu_slots_drop(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Free the slot, if it still is in this generation and its lock is free. */
void vgpu_slots_free(const struct vgpu_slots *slots, const struct vgpu_owner *owner);
