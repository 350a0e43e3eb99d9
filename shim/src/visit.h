/*
 * Another context made current for a while, so that the driver is asked there. Keeps nothing; a
 * visit that cannot be made is none, and what follows happens in the current context.
 */
#ifndef VGPU_VISIT_H
#define VGPU_VISIT_H

#include <stdbool.h>

#include "vgpu/cuda_abi.h"

struct vgpu_visit {
	bool pushed;
};

/* NULL, and the context that is current: nothing to do. */
struct vgpu_visit vgpu_visit_context(CUcontext context);
struct vgpu_visit vgpu_visit_stream(CUstream stream);
void vgpu_visit_end(struct vgpu_visit visit);

/* The handles NULL, legacy and per-thread: streams of whatever context is current. */
bool vgpu_is_stream_of_any(CUstream stream);

#endif
