/*
 * A GPU's engine: it runs one context at a time, in time slices, and a context's items in order.
 *
 * engine_advance simulates all that happened since its last call. A context is ready if its next
 * item may begin. Ready contexts take turns. A context that is not ready yields at once. An item
 * that is not done at the end of a slice continues in the context's next turn.
 *
 * Pure: it works on shared memory and an instant (CLOCK_MONOTONIC). The caller holds the lock, and
 * may be killed after any store. Therefore each store leaves a valid state: at worst, a slice's
 * work is counted twice or not at all.
 */
#ifndef SIMGPU_ENGINE_H
#define SIMGPU_ENGINE_H

#include <stdbool.h>

#include "client/board.h"

void engine_advance(struct sim_shared *shared, uint64_t now_ns);

/* Returns the item's number, or 0 if the channel is full. Advance the engine before. */
uint64_t engine_submit(struct sim_shared *shared, uint32_t channel, uint64_t duration_ns,
		       uint64_t earliest_ns);

/* Predicts when an unfinished item will be done if no more work is submitted. */
uint64_t engine_predict_ns(const struct sim_shared *shared, uint32_t channel, uint64_t number);

#endif
