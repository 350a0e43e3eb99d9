/*
 * A GPU's engine: it runs one context at a time, in time slices, and a context's items in order.
 *
 * Simulated lazily: engine_advance computes what happened since the last look. A context whose
 * next item may begin is ready; ready contexts take turns, and one without such an item yields at
 * once. An item whose slice ends continues in the context's next turn.
 *
 * Pure: it works on shared memory and an instant (CLOCK_MONOTONIC); the caller holds the lock. Each
 * store leaves a valid state, because a holder of the lock may be killed after any of them: at
 * worst a slice's work is counted twice or not at all.
 */
#ifndef SIMGPU_ENGINE_H
#define SIMGPU_ENGINE_H

#include <stdbool.h>

#include "client/board.h"

void engine_advance(struct sim_shared *shared, uint64_t now_ns);

/* The item's number; 0: the channel is full. Advanced until now. */
uint64_t engine_submit(struct sim_shared *shared, uint32_t channel, uint64_t duration_ns,
		       uint64_t earliest_ns);

/* When the item will be done if no more work is submitted: it is submitted and not completed. */
uint64_t engine_predict_ns(const struct sim_shared *shared, uint32_t channel, uint64_t number);

#endif
