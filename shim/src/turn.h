/*
 * A turn: of all processes of a container one at a time does on a card what cannot be undone and
 * says only afterwards how much memory it took.
 *
 * A byte of the region is locked through a description of its own, so that threads exclude each
 * other as processes do and a death ends the turn. Knows no driver.
 */
#ifndef VGPU_TURN_H
#define VGPU_TURN_H

#include <stdbool.h>

struct vgpu_turn {
	int fd; /* negative: none is held */
};

#define VGPU_NO_TURN ((struct vgpu_turn){-1})

/* False: somebody held it for ten seconds (without a wait: holds it), the thread has one already
 * (its signal handler asks), or there is nothing to lock. */
bool vgpu_turn_take(int card, struct vgpu_turn *turn, bool waits);
void vgpu_turn_end(struct vgpu_turn *turn);

#endif
