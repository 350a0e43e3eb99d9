/*
 * A GPU's engine: it runs one context at a time, in time slices.
 *
 * A context's queues run at the same time, each at the GPU's full speed, as if no kernel filled the
 * GPU and copies had engines of their own. A queue's items run in order. An item may wait for items
 * of other queues of its context. engine_advance simulates all that happened since its last call. A
 * context is ready if an item of it may run. Ready contexts take turns. A context that is not ready
 * yields at once. An item that is not done at the end of a slice continues in the context's next
 * turn.
 *
 * Each context has a clock that runs only while it has the GPU. So an item's start and end on that
 * clock are known when it is submitted, and do not depend on other contexts.
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

/*
 * Submits an item to queue number `queue` of all: SIM_QUEUES of each channel. `after` has an item
 * of each queue of the channel that must be done before; 0: none. Returns the item's number, or 0
 * if the queue is full. Advance the engine before.
 */
uint64_t engine_submit(struct sim_shared *shared, uint32_t queue, uint64_t duration_ns,
		       uint64_t earliest_ns, const uint64_t after[SIM_QUEUES]);

/* Predicts when an unfinished item will be done if no more work is submitted. */
uint64_t engine_predict_ns(const struct sim_shared *shared, uint32_t queue, uint64_t number);

#endif
