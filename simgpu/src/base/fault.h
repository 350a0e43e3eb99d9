/*
 * Faults, armed in the daemon, of a call by the entry's name.
 */
#ifndef SIMGPU_FAULT_H
#define SIMGPU_FAULT_H

#include <stdbool.h>

#include "abi/cuda_abi.h"

/* True: the call does nothing and returns `result`. Applies the fault's delay first. */
bool fault_strikes(const char *name, CUresult *result);

#endif
