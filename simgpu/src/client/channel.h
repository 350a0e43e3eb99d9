/*
 * A context's queues in its GPU's engine: submit an item, look whether it is done, predict when.
 *
 * Queues are numbered through all channels: SIM_QUEUES of each.
 *
 * Each call locks the engine for less than a microsecond. If a process is killed while it holds the
 * lock, other processes wait until the daemon has noticed the exit. No call waits for the GPU.
 */
#ifndef SIMGPU_CHANNEL_H
#define SIMGPU_CHANNEL_H

#include "client/board.h"
#include "client/client.h"

enum sim_submitted { SIM_SUBMITTED, SIM_QUEUE_FULL, SIM_NO_CHANNEL };

/* Submits an item: see engine_submit. Returns SIM_NO_CHANNEL if the GPU is lost or the context has
 * ended. */
enum sim_submitted sim_submit(struct sim_link *link, uint32_t queue, uint64_t duration_ns,
			      uint64_t earliest_ns, const uint64_t after[SIM_QUEUES],
			      uint64_t *number);

/* Advances the engine to the present instant. */
void sim_look(struct sim_link *link);

/* Whether the item was done when the engine last advanced, and when. Both only read memory. */
bool sim_is_done(const struct sim_link *link, uint32_t queue, uint64_t number);
uint64_t sim_done_ns(const struct sim_link *link, uint32_t queue, uint64_t number);

/* Advances the engine. Predicts when the item will be done if no work is added; 0: it is done. */
uint64_t sim_predict_ns(struct sim_link *link, uint32_t queue, uint64_t number);

/* Returns the item of a full queue that must be done before another can be submitted. */
uint64_t sim_oldest_item(const struct sim_link *link, uint32_t queue);

#endif
