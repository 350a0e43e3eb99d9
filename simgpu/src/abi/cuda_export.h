/*
 * Declares the exported functions, for files that define them or return their addresses. NAME of
 * cuda.def is declared as exported_NAME. Functions of cuda_unsupported.def read no arguments.
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
#define NAME(symbol, base, since) CUresult symbol(void);
#define PER_THREAD_NAME(symbol, base, since, suffix, twin_since)                                   \
	NAME(symbol, base, since) NAME(symbol##suffix, base, twin_since)
#include "abi/cuda.def"
#include "abi/cuda_unsupported.def"
#undef ENTRY
#undef OLDER
#undef PER_THREAD
#undef NAME
#undef PER_THREAD_NAME
#pragma GCC visibility pop

#endif
