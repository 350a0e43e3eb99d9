/*
 * What the driver takes by itself and does not say: measured by its own account of free memory
 * before and after a call, less what this container was charged in between.
 *
 * The error is what others do in between: a neighbour's allocation is charged to us, its free hides
 * as much of ours, and so does an allocation of ours that is reserved and not made yet. So every
 * measurement has bounds, from what the call can need at most. Windows of several threads may
 * overlap in one context: they share one account, so that each change is charged once. Those of
 * different contexts wait for each other for a second; after that, what comes is charged to none.
 */
#ifndef VGPU_MEASURE_H
#define VGPU_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "place.h"

struct vgpu_window {
	struct vgpu_place place; /* who is charged */
	bool open;		 /* false: nothing is measured, and closing does nothing */
	bool reserved; /* room for what is measured: that is not what the dead gave back */
};

/* A measurement outside of these is taken to be at the nearer one. */
struct vgpu_bounds {
	int64_t least_bytes, most_bytes;
};

/* Bounds of what a module's code can take, and give back. */
extern const struct vgpu_bounds vgpu_code_taken, vgpu_code_given;

/* In the current context, for its own charge; it stays closed where there is none that counts. */
void vgpu_window_open(struct vgpu_window *window);

/* The same for a place that is not there yet: any context on its card serves, NULL for none. */
void vgpu_window_open_by(struct vgpu_window *window, struct vgpu_place place, CUcontext context);

/*
 * Contexts come and go alone: between these two no other thread of the process opens a window on
 * the card, and those that were open are closed. Else one would be charged for what another's call
 * took, also when that is given back; and what the other has reserved would hide as much. Either
 * side waits for a second at most, and then goes ahead all the same.
 */
bool vgpu_alone_enter(int card);
void vgpu_alone_leave(int card, bool entered);

/* This thread has a window open: what the driver calls meanwhile is part of that call. */
bool vgpu_measuring(void);

/* In a context on the same card: charge, and say how much. */
int64_t vgpu_window_close(struct vgpu_window *window, struct vgpu_bounds bounds);

/* Without a charge: nothing came of it, or there is no context to ask in. */
void vgpu_window_drop(struct vgpu_window *window);

/* Whether what was charged is more than the limit allows: then undo, if it can be undone. */
bool vgpu_took_too_much(const struct vgpu_window *window, int64_t taken_bytes);

/*
 * What the card holds that nobody of this container is charged for, up to most_bytes, is taken to
 * be the current context's own. For the first context on a card: there is none before it in which
 * the driver could be asked. Returns what was charged; just after a process of the container died
 * that is provisional: the card may still hold what the dead held.
 */
int64_t vgpu_charge_unexplained(struct vgpu_place place, uint64_t reserved_bytes,
				uint64_t most_bytes);

/* The context has ended: its charge need be certain no more, and what was charged to none in
 * particular goes with the last one on the card. */
void vgpu_measured_ended(uint32_t context);

/*
 * A reservation did not fit: was a context on that card charged for what the dead still held, and
 * has the card let go of it? Waits for that about a second at most; true: try again.
 */
bool vgpu_correct_measured(int card);

#endif
