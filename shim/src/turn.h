/*
 * A turn: of all processes of a container one at a time does on a card what cannot be undone and
 * says only afterwards how much memory it took.
 *
 * A byte of the region is locked through a description of its own, which a mapping keeps that no
 * child inherits (attach.c): so threads exclude each other as processes do, and a death ends the
 * turn, whatever children the dead leave. Knows no driver.
 */
#ifndef VGPU_TURN_H
#define VGPU_TURN_H

#include <stdbool.h>
#include <stdint.h>

struct vgpu_turn {
	uint64_t birth_ns; /* the life of the process that holds it; 0: none is held */
	void *anchor;
	int fd; /* where there is no anchor */
};

#define VGPU_NO_TURN ((struct vgpu_turn){.fd = -1})

static inline bool vgpu_turn_is_held(const struct vgpu_turn *turn)
{
	return turn->birth_ns != 0;
}

/* False: somebody held it for ten seconds (without a wait: holds it), the thread has one already
 * (its signal handler asks), or there is nothing to lock. */
bool vgpu_turn_take(int card, struct vgpu_turn *turn, bool waits);
void vgpu_turn_end(struct vgpu_turn *turn);

#endif
