/*
 * Who has a window open on a card: threads of this process, and in which life of a context each.
 *
 * A row goes with its thread: one that ended inside a driver call is forgotten at the next look, so
 * nobody waits for it and no reference is kept for its sake. Past OPENERS at once threads are only
 * counted, and believed to live. Knows no driver; the caller holds the account's lock.
 */
#ifndef VGPU_OPENERS_H
#define VGPU_OPENERS_H

#include <stdbool.h>
#include <stdint.h>

enum { VGPU_OPENERS = 64 };

struct vgpu_openers {
	uint32_t count, uncounted;
	struct vgpu_opener {
		uint32_t thread, context;
	} rows[VGPU_OPENERS];
};

/* The calling thread. It has none open before, and removes what it added. */
void vgpu_openers_add(struct vgpu_openers *openers, uint32_t context);
void vgpu_openers_remove(struct vgpu_openers *openers);

/* Another thread, in any context; and in another than that. */
bool vgpu_openers_any(struct vgpu_openers *openers);
bool vgpu_openers_elsewhere(struct vgpu_openers *openers, uint32_t context);

#endif
