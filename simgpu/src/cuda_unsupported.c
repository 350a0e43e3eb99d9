/*
 * Every name of cuda_unsupported.def, answering that it is not supported. Arguments are not looked
 * at, so one shape serves all: the caller passes them in registers and on its own stack.
 */
#include "cuda_unsupported.h"

#define NAME(symbol, base, since)                                                                  \
	CUresult symbol(void)                                                                      \
	{                                                                                          \
		return CUDA_ERROR_NOT_SUPPORTED;                                                   \
	}
#define PER_THREAD_NAME(symbol, base, since) NAME(symbol, base, since)
#define OTHER_BASE(symbol, base, since)
#include "cuda_unsupported.def"
