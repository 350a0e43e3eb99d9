/*
 * Prototypes of every simulated entry point, expanded from cuda.def.
 *
 * Every file that defines one includes this, so that a signature that differs from the list does
 * not compile. The name of an entry in the driver's files is linked as sim_NAME; the exported NAME
 * is entry.c's, which applies faults first. So faults do not affect calls inside the library, and
 * an interposer does not see them.
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
