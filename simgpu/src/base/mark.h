/*
 * Marks: how far the GPUs must come until a stream's work so far, an event or a free is reached.
 *
 * A mark has one position in each channel that it depends on. A channel runs its items in order,
 * so a position stands for all before it. With the driver's lock, unless stated otherwise.
 */
#ifndef SIMGPU_MARK_H
#define SIMGPU_MARK_H

#include <stdbool.h>
#include <stdint.h>

#define MARK_POSITIONS 8

struct position {
	uint16_t device; /* ordinal */
	uint16_t channel;
	uint64_t number; /* of an item */
};

struct mark {
	unsigned int count;
	struct position at[MARK_POSITIONS];
	uint64_t not_before_ns; /* nor is it reached before that instant */
};

/* `mark` is behind `other`, too. If it has no space for a position, for the predicted instant. */
void mark_add(struct mark *mark, const struct mark *other);
/* It is behind that item, too. */
void mark_add_position(struct mark *mark, struct position position);

/*
 * Whether it was reached at the last look at the GPUs: reads memory only; and when it was. The
 * instant is known for SIM_HISTORY items. No lock needed.
 */
bool mark_seen(const struct mark *mark);
uint64_t mark_reached_ns(const struct mark *mark);

/* A look at each GPU that this process has used. */
void marks_look(void);
/* The same for the mark's GPUs, if they must be looked at, and whether it is reached. No lock
 * needed. */
bool mark_is_reached(const struct mark *mark);

/* When it will be reached under the present load; 0: it is. Positions in `own` do not count. No
 * lock needed. */
uint64_t mark_predict_ns(const struct mark *mark, const struct position *own);

/* Sleeps until it is reached, or its GPUs are lost. Without the lock. */
void mark_wait(const struct mark *mark);

#endif
