/*
 * Every name of cuda_unsupported.def. After cuInit each returns that it is not supported; before,
 * what the driver returns, by whether the first arguments are zero. One signature serves all: the
 * caller passes arguments in registers and on its own stack.
 */
#include "abi/cuda_unsupported.h"
#include "base/driver.h"
#include "entry/before_init.h"

static CUresult refuse(const char *name, bool zeros)
{
	CUresult result = CUDA_ERROR_NOT_INITIALIZED;

	if (driver_is_up())
		return CUDA_ERROR_NOT_SUPPORTED;
	before_init(name, zeros, &result);
	return result;
}

#define NAME(symbol, base, since)                                                                  \
	CUresult symbol(SIM_REGISTERS)                                                             \
	{                                                                                          \
		return refuse(#symbol, !(a | b | c | d | e | f));                                  \
	}
#define PER_THREAD_NAME(symbol, base, since) NAME(symbol, base, since)
#define UNLISTED_NAME(symbol, base, since)   NAME(symbol, base, since)
#include "abi/cuda_unsupported.def"
