/*
 * Every name of cuda_unsupported.def: after cuInit each returns that it is not supported. One
 * signature serves all: the caller passes arguments in registers and on its own stack.
 */
#include "abi/cuda_unsupported.h"
#include "base/driver.h"

#define NAME(symbol, base, since)                                                                  \
	CUresult symbol(void)                                                                      \
	{                                                                                          \
		return driver_is_up() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;     \
	}
#define PER_THREAD_NAME(symbol, base, since) NAME(symbol, base, since)
#define UNLISTED_NAME(symbol, base, since)   NAME(symbol, base, since)
#include "abi/cuda_unsupported.def"
