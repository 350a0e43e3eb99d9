/*
 * Shared by the null driver's files: its entries (null_entry.h), its memory (null_memory.h), and
 * the beginning of every allocation.
 */
#ifndef SIMGPU_NULL_DRIVER_H
#define SIMGPU_NULL_DRIVER_H

#include "null/null_entry.h"
#include "null/null_memory.h"

/* The checks and the latency of an allocation. */
CUresult null_may_allocate(const void *out, size_t bytes);

void null_take_time(void);

#endif
