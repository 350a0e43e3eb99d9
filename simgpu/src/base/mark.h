/*
 * A mark states how far the GPUs must come until a stream's work, an event or a free is reached.
 *
 * A mark has one position in each queue that it depends on. A queue runs its items in order, so a
 * position includes all earlier items. The caller holds the lock, unless stated otherwise.
 */
#ifndef SIMGPU_MARK_H
#define SIMGPU_MARK_H

#include <stdbool.h>
#include <stdint.h>

#define MARK_POSITIONS 16 /* two contexts' queues */

struct position {
	uint16_t device; /* ordinal */
	uint16_t queue;	 /* number of the queue on the device: client/channel.h */
	uint64_t number; /* the number of an item */
};

struct mark {
	unsigned int count;
	struct position at[MARK_POSITIONS];
	uint64_t not_before_ns; /* the mark is not reached before that instant either */
};

/* Makes `mark` depend on `other`, too. If it is full, stores a position's predicted instant. */
void mark_add(struct mark *mark, const struct mark *other);
/* Makes `mark` also depend on that item. */
void mark_add_position(struct mark *mark, struct position position);

/*
 * Whether the mark was reached when the engines were last advanced, and when it was reached. They
 * only read memory, without the lock. The instant is known for a queue's latest SIM_HISTORY
 * items.
 */
bool mark_seen(const struct mark *mark);
uint64_t mark_reached_ns(const struct mark *mark);

/* Advances the engine of each GPU that this process has used. */
void marks_look(void);
/* Advances the engines of its GPUs if needed. Returns whether it is reached. Needs no lock. */
bool mark_is_reached(const struct mark *mark);

/* Predicts when the mark will be reached if no more work is submitted; 0: it is reached. It ignores
 * positions in the context of `own`, and needs no lock. */
uint64_t mark_predict_ns(const struct mark *mark, const struct position *own);

/* Stores the mark's latest item of each queue of the context of `own`; 0: none. */
void mark_items(const struct mark *mark, const struct position *own, uint64_t items[]);

/* Sleeps until the mark is reached or its GPUs are lost. The caller does not hold the lock. */
void mark_wait(const struct mark *mark);

#endif
