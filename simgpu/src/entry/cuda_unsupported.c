/*
 * Every name of cuda_unsupported.def. After cuInit each returns that it is not supported; before,
 * what before_init.def says, whatever the arguments. One signature serves all: the caller passes
 * arguments in registers and on its own stack.
 */
#include "abi/cuda_unsupported.h"
#include "base/driver.h"
#include "entry/before_init.h"

static CUresult refuse(const char *name)
{
	CUresult result = CUDA_ERROR_NOT_INITIALIZED;

	if (driver_is_up())
		return CUDA_ERROR_NOT_SUPPORTED;
	before_init(name, false, &result);
	return result;
}

#define NAME(symbol, base, since)                                                                  \
	CUresult symbol(void)                                                                      \
	{                                                                                          \
		return refuse(#symbol);                                                            \
	}
#define PER_THREAD_NAME(symbol, base, since) NAME(symbol, base, since)
#define UNLISTED_NAME(symbol, base, since)   NAME(symbol, base, since)
#include "abi/cuda_unsupported.def"
