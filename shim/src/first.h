/*
 * The first time that a function is launched, gets into a graph or is asked for something: its code
 * is loaded ahead, in a call that can be refused, before the one that cannot.
 *
 * Everything here is cold; who calls has looked into seen.h.
 */
#ifndef VGPU_FIRST_H
#define VGPU_FIRST_H

#include <stdbool.h>

#include "hooks.h"
#include "load.h"
#include "vgpu/cuda_abi.h"
#include "visit.h"

/* By the twin's name: the stream 0 of the one is the thread's own. */
CUstream vgpu_own_stream(enum vgpu_function real, enum vgpu_function twin, CUstream stream);
bool vgpu_captures(CUstream stream);

/*
 * In the current context; a kernel's handle becomes its function's there. CUDA_ERROR_OUT_OF_MEMORY:
 * it is not loaded, and may not be. Any other trouble is the driver's to tell when it is used.
 */
CUresult vgpu_load_ahead(CUfunction *function);

/* Was every function so far seen to be loaded by that? Drivers before CUDA 12.4 do not tell. */
bool vgpu_all_are_ahead(void);

/* Does it need no loading, as far as anybody can tell? */
bool vgpu_needs_no_loading(CUfunction function);

struct vgpu_first {
	struct vgpu_load load;
	struct vgpu_visit visit;
	CUcontext home; /* that its code belongs to; NULL: the current one */
	CUfunction key; /* by which it is seen from then on */
	int local_bytes;
	bool runs; /* and is not captured, nor was it seen before */
};

/* A launch into that stream; what is not CUDA_SUCCESS the wrapper returns, else end must follow. */
CUresult vgpu_first_begin(struct vgpu_first *first, CUfunction function, CUstream stream);
CUresult vgpu_first_end(struct vgpu_first *first, CUresult result);

#endif
