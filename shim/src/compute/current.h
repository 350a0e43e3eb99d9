/*
 * The GPU of the calling thread's current context, without a driver call for each launch: kept in
 * thread-local storage, and forgotten by every call that changes what is current.
 */
#pragma once

#include <stdbool.h>

#include "vgpu/cuda_abi.h"

extern __thread int vgpu_current; /* GPU of the grant + 1; 0: unknown; -1: none */

static inline void vgpu_current_changed(void)
{
	vgpu_current = 0;
}

/* The GPU's index in the grant; negative: none of it. */
int vgpu_current_find(void);

static inline int vgpu_current_gpu(void)
{
	return __builtin_expect(vgpu_current != 0, 1) ? vgpu_current - 1 : vgpu_current_find();
}

/* Captures that are open in the process, counted by the wrappers that begin and end them. */
extern int vgpu_open_captures;

/* True if work submitted to the stream is recorded and not executed. Without an open capture this
 * is one load. */
bool vgpu_is_captured_on(CUstream stream);

static inline bool vgpu_is_captured(CUstream stream)
{
	return __builtin_expect(__atomic_load_n(&vgpu_open_captures, __ATOMIC_RELAXED) > 0, 0) &&
	       vgpu_is_captured_on(stream);
}
