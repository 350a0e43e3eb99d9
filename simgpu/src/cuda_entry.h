/*
 * Prototypes of every simulated entry point, expanded from cuda.def and exported.
 *
 * Included by whoever defines one, so that a signature that differs from the list does not compile.
 */
#ifndef SIMGPU_CUDA_ENTRY_H
#define SIMGPU_CUDA_ENTRY_H

#include "cuda_abi.h"

#pragma GCC visibility push(default)
#define ENTRY(symbol, base, since, params)		CUresult symbol params;
#define OLDER(symbol, base, since, params, args, newer) CUresult symbol params;
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	CUresult symbol params;                                                                    \
	CUresult symbol##suffix params;
#include "cuda.def"
#undef ENTRY
#undef OLDER
#undef PER_THREAD
#pragma GCC visibility pop

#endif
