/*
 * Which context code belongs to: a module to the one that it was loaded in, a function to its
 * module's. Code is measured there, whatever context is current when it comes; a library's kernels
 * belong to the context that they are used in, and are not in here.
 *
 * Fed by the wrappers of the calls that give handles out; one that comes again is written over. A
 * function that none of them gave out is asked for its module (CUDA 11). Of whatever else is not
 * known, or has no room, the answer is NULL, which means the current context.
 */
#ifndef VGPU_HOMES_H
#define VGPU_HOMES_H

#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* A module was loaded in that life of a context, or is the current one's. */
void vgpu_home_begin(CUmodule module, uint32_t life);
void vgpu_home_begin_here(CUmodule module);

/* A function of that module, or of the current context where it is a kernel's. */
void vgpu_home_of_new(CUfunction function, CUmodule module);
void vgpu_home_of_kernels(CUfunction function);

/* A module is about to be unloaded, and its functions with it; and the driver has refused. */
struct vgpu_home {
	uint32_t life;	 /* 0: not known */
	uint32_t serial; /* homes.c's */
};
struct vgpu_home vgpu_home_end(CUmodule module);
void vgpu_home_stays(CUmodule module, struct vgpu_home home);

/* A library is about to be unloaded, and its kernels' functions with it. */
void vgpu_homes_end_of_kernels(void);

/* NULL as well where the process has had one context only: nobody is asked then. */
CUcontext vgpu_home_of_module(CUmodule module);
CUcontext vgpu_home_of_function(CUfunction function);

#endif
