/*
 * Prototypes of every simulated driver function, expanded from cuda.def.
 *
 * Every file that defines such a function includes this header. So a signature that differs from
 * cuda.def does not compile. Inside the library, function NAME is linked as sim_NAME. The exported
 * NAME is in entry.c and applies injected faults first. So faults do not affect calls within the
 * library, and a library that interposes NAME does not see these calls.
 */
#ifndef SIMGPU_CUDA_ENTRY_H
#define SIMGPU_CUDA_ENTRY_H

#include "abi/cuda_abi.h"

#ifdef SIMGPU_DRIVER
#define LINKED_AS(symbol) __asm__("sim_" #symbol)
#else /* a program */
#define LINKED_AS(symbol)
#endif

#define ENTRY(symbol, base, since, params)		CUresult symbol params LINKED_AS(symbol);
#define OLDER(symbol, base, since, params, args, newer) ENTRY(symbol, base, since, params)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	ENTRY(symbol, base, since, params)                                                         \
	ENTRY(symbol##suffix, base, since, params)
#include "abi/cuda.def"
#undef ENTRY
#undef OLDER
#undef PER_THREAD
#undef LINKED_AS

#endif
