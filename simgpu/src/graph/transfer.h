/*
 * Copies and fills: checked to their last byte, then executed when they are submitted, or recorded
 * as a node of a graph if their stream captures.
 */
#ifndef SIMGPU_TRANSFER_H
#define SIMGPU_TRANSFER_H

#include "base/driver.h"
#include "graph/work.h"

CUresult transfer_submit(const struct transfer *transfer, CUstream stream);
/* The same, and waits for the legacy stream's pending work. */
CUresult transfer_wait(const struct transfer *transfer);

/* host_calls.c: the function runs in a thread of the driver, once `ready` is reached; `*number` is
 * its own, for marks behind it. */
CUresult host_call_at(const struct mark *ready, const struct host_call *call, uint64_t *number);
/* Whether a mark is reached and the functions before it have ended; and waits until then, without
 * the lock. */
bool work_is_done(const struct mark *mark);
void work_wait(const struct mark *mark);

#endif
