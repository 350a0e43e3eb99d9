/* The answers of entries before cuInit: before_init.def. */
#ifndef SIMGPU_BEFORE_INIT_H
#define SIMGPU_BEFORE_INIT_H

#include <stdbool.h>

#include "abi/cuda_abi.h"

/*
 * Sets `*result` if the entry called `name` answers something else than CUDA_ERROR_NOT_INITIALIZED
 * before cuInit. Call it if the driver is not initialised.
 */
bool before_init(const char *name, bool zeros, CUresult *result);

#endif
