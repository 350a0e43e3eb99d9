/* The GPU and the generation of the calling thread's current context. They are cached in
 * thread-local storage, so that a launch needs no driver call. Each hooked call that changes the
 * current context clears the cache. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

extern __thread int vgpu_current; /* index in the grant + 1; 0: unknown; -1: none */

static inline void vgpu_current_changed(void)
{
	vgpu_current = 0;
}

/* The GPU's index in the grant. Negative: the current context is on no GPU of the grant. */
int vgpu_current_find(void);

static inline int vgpu_current_gpu(void)
{
	return __builtin_expect(vgpu_current != 0, 1) ? vgpu_current - 1 : vgpu_current_find();
}

/* The current context's generation. 0: unknown. */
uint32_t vgpu_current_generation(void);

/* The number of open captures in the process, counted by the wrappers that begin and end
 * captures. */
extern int vgpu_open_captures;

/* True if work submitted to the stream is recorded instead of executed. While no capture is open,
 * the test costs one load from memory. */
bool vgpu_is_captured_on(CUstream stream);

static inline bool vgpu_is_captured(CUstream stream)
{
	return __builtin_expect(__atomic_load_n(&vgpu_open_captures, __ATOMIC_RELAXED) > 0, 0) &&
	       vgpu_is_captured_on(stream);
}
