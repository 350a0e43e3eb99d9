/* Declarations of the names in cuda_unsupported.def, which read no argument. */
#ifndef SIMGPU_CUDA_UNSUPPORTED_H
#define SIMGPU_CUDA_UNSUPPORTED_H

#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)
#define NAME(symbol, base, since)	     CUresult symbol(void);
#define PER_THREAD_NAME(symbol, base, since) CUresult symbol(void);
#define UNLISTED_NAME(symbol, base, since)   CUresult symbol(void);
#include "abi/cuda_unsupported.def"
#undef NAME
#undef PER_THREAD_NAME
#undef UNLISTED_NAME
#pragma GCC visibility pop

#endif
