/*
 * Prototypes of every simulated driver function, expanded from cuda.def.
 *
 * Every file that defines one includes this, so a signature that differs from the list does not
 * compile. Inside the library, function NAME is linked as sim_NAME. The exported NAME is in entry.c
 * and applies injected faults first. So calls within the library meet no faults, and a library that
 * interposes NAME does not see them.
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
