/*
 * The exported entry points, for files that return them: exported_NAME here, NAME elsewhere.
 */
#ifndef SIMGPU_CUDA_EXPORT_H
#define SIMGPU_CUDA_EXPORT_H

#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)
#define ENTRY(symbol, base, since, params)		CUresult exported_##symbol params __asm__(#symbol);
#define OLDER(symbol, base, since, params, args, newer) ENTRY(symbol, base, since, params)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	ENTRY(symbol, base, since, params)                                                         \
	ENTRY(symbol##suffix, base, since, params)
#include "abi/cuda.def"
#undef ENTRY
#undef OLDER
#undef PER_THREAD
#pragma GCC visibility pop

#endif
