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

/* host_calls.c: the function runs in a thread of the driver, once that instant is reached. */
CUresult host_call_at(uint64_t ready_ns, const struct host_call *call);
/* True if one that is due by then has not ended; waits until none is left. */
bool host_calls_due(uint64_t until_ns);
void host_calls_wait(uint64_t until_ns);

#endif
