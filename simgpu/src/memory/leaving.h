/*
 * Device memory of no pool that was freed in a stream: no longer the program's, and still the
 * GPU's.
 *
 * It is freed at the first synchronisation on the device after the stream has reached the free, or
 * when the GPU is full by then; until that its address is not given out again. Ends with its
 * context like any other.
 */
#ifndef SIMGPU_LEAVING_H
#define SIMGPU_LEAVING_H

#include "base/driver.h"

/* With the lock: the range is freed once `ready` is reached. */
void leaving_add(struct device *device, struct range *range, const struct mark *ready);

/* Without the lock: frees what can be freed by now. True: that was something. */
bool leaving_go(struct device *device);

/* With the lock: the context's memory is already freed. */
void leaving_forget(const struct context *context);

#endif
