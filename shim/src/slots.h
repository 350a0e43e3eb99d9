/*
 * Slots of the region: who holds one, who is dead, taking and freeing.
 *
 * A slot's state, generation and identity change only under its LIVE lock; a dead slot's charge is
 * dropped without any lock. Never waits: a slot whose lock somebody holds is passed over. Knows
 * nothing of grants or limits.
 */
#ifndef VGPU_SLOTS_H
#define VGPU_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "counter.h"
#include "identity.h"

/* The region through a descriptor of one's own; locks taken through it are this description's. */
struct vgpu_slots {
	const struct vgpu_view *view;
	int fd;
	const struct vgpu_identity *self;
};

/*
 * Drop the charges of dead processes and free their slots, `except` (may be NULL) aside. With
 * `newcomer`, slots under our own identity are a former life's (before exec, or lost), and dead.
 */
void vgpu_slots_reap(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		     bool newcomer);

/* Take the lowest free slot; its lock stays with the open file description of slots->fd. False:
 * none. */
bool vgpu_slots_claim(const struct vgpu_slots *slots, struct vgpu_owner *owner);

/* Drop the slot's charges, if it still is in this generation, and note when. */
void vgpu_slots_drop(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

/* Free the slot, if it still is in this generation and nobody holds its lock. */
void vgpu_slots_free(const struct vgpu_slots *slots, const struct vgpu_owner *owner);

#endif
