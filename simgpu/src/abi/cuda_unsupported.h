/* Declarations of the names in cuda_unsupported.def: of any arguments, those in registers. */
#ifndef SIMGPU_CUDA_UNSUPPORTED_H
#define SIMGPU_CUDA_UNSUPPORTED_H

#include "abi/cuda_abi.h"

#define SIM_REGISTERS uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f

#pragma GCC visibility push(default)
#define NAME(symbol, base, since)	     CUresult symbol(SIM_REGISTERS);
#define PER_THREAD_NAME(symbol, base, since) CUresult symbol(SIM_REGISTERS);
#define UNLISTED_NAME(symbol, base, since)   CUresult symbol(SIM_REGISTERS);
#include "abi/cuda_unsupported.def"
#undef NAME
#undef PER_THREAD_NAME
#undef UNLISTED_NAME
#pragma GCC visibility pop

#endif
