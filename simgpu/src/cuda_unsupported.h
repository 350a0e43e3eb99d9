/* Declarations of the names in cuda_unsupported.def; their arguments are nobody's business. */
#ifndef SIMGPU_CUDA_UNSUPPORTED_H
#define SIMGPU_CUDA_UNSUPPORTED_H

#include "cuda_abi.h"

#pragma GCC visibility push(default)
#define NAME(symbol, base, since)	     CUresult symbol(void);
#define PER_THREAD_NAME(symbol, base, since) CUresult symbol(void);
#define OTHER_BASE(symbol, base, since)
#include "cuda_unsupported.def"
#undef NAME
#undef PER_THREAD_NAME
#undef OTHER_BASE
#pragma GCC visibility pop

#endif
