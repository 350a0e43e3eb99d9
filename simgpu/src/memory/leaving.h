/*
 * Device memory outside of pools that was freed in a stream. The program may no longer use it, but
 * it is still allocated on the GPU.
 *
 * Once the stream has reached the free operation, the memory is freed at the next synchronisation
 * on the device, or when the GPU is full. Until then its address is not reused. It also ends with
 * its context.
 */
#ifndef SIMGPU_LEAVING_H
#define SIMGPU_LEAVING_H

#include "base/driver.h"

/* Frees the range at some time after `ready` is reached. Called with the lock. */
void leaving_add(struct device *device, struct range *range, const struct mark *ready);

/* Frees all ranges that it can. Returns true if it freed any. Called without the lock. */
bool leaving_go(struct device *device);

/* Forgets the context's ranges, whose memory is already freed. Called with the lock. */
void leaving_forget(const struct context *context);

#endif
