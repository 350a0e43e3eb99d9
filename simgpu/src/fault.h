/*
 * Faults that the daemon was told to let strike a call, by the entry's name.
 */
#ifndef SIMGPU_FAULT_H
#define SIMGPU_FAULT_H

#include <stdbool.h>

#include "cuda_abi.h"

/* True: the call does nothing and returns `result`. Waits first, where the call is to be late. */
bool fault_strikes(const char *name, CUresult *result);

#endif
