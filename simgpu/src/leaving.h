/*
 * Device memory of no pool that was freed in a stream: the program's no more, and still the GPU's.
 *
 * It goes at the first synchronisation on the device after the stream got there, or when the GPU
 * is full by then; its address is nobody else's until it went. Ends with its context like any
 * other.
 */
#ifndef SIMGPU_LEAVING_H
#define SIMGPU_LEAVING_H

#include "driver.h"

/* With the lock: the range leaves once `ready_ns` has come. False: no memory to note it. */
bool leaving_add(struct device *device, struct range *range, uint64_t ready_ns);

/* Without the lock: gives the GPU what may go by now. True: that was something. */
bool leaving_go(struct device *device);

/* With the lock: the context's memory is gone. */
void leaving_forget(const struct context *context);

#endif
