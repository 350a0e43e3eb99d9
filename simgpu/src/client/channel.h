/*
 * A context's channel to its GPU's engine: submit an item, look whether it is done, predict when.
 *
 * Each call locks the engine for less than a microsecond. A process that is killed while it holds
 * the lock delays the others until the daemon has seen its exit. No call waits for the GPU.
 */
#ifndef SIMGPU_CHANNEL_H
#define SIMGPU_CHANNEL_H

#include "client/client.h"

enum sim_submitted { SIM_SUBMITTED, SIM_CHANNEL_FULL, SIM_NO_CHANNEL };

/* SIM_NO_CHANNEL: the GPU is lost, or the context has ended. */
enum sim_submitted sim_submit(struct sim_link *link, uint32_t channel, uint64_t duration_ns,
			      uint64_t earliest_ns, uint64_t *number);

/* Brings the engine to the present instant. */
void sim_look(struct sim_link *link);

/* Whether the item was done at the last look, and when: reads memory only. */
bool sim_is_done(const struct sim_link *link, uint32_t channel, uint64_t number);
uint64_t sim_done_ns(const struct sim_link *link, uint32_t channel, uint64_t number);

/* When it will be done under the present load, after a look; 0: it is done. */
uint64_t sim_predict_ns(struct sim_link *link, uint32_t channel, uint64_t number);

/* The item before which a full channel has no room. */
uint64_t sim_oldest_item(const struct sim_link *link, uint32_t channel);

#endif
