/*
 * Entry points that only call another one: older ABIs, and those whose stream 0 is the calling
 * thread's own. Expanded from cuda.def.
 */
#include "base/driver.h"

#define ENTRY(symbol, base, since, params)
#define OLDER(symbol, base, since, params, args, newer)                                            \
	CUresult symbol params                                                                     \
	{                                                                                          \
		return newer args;                                                                 \
	}
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	CUresult symbol##suffix params                                                             \
	{                                                                                          \
		bool before = stream_per_thread(true);                                             \
		CUresult result = symbol args;                                                     \
                                                                                                   \
		stream_per_thread(before);                                                         \
		return result;                                                                     \
	}
#include "abi/cuda.def"
