/*
 * The driver's functions that cuda-load calls, loaded by dlopen as programs with a statically
 * linked runtime do.
 */
#ifndef SIMGPU_LOAD_DRIVER_H
#define SIMGPU_LOAD_DRIVER_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES(X)                                                                                 \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                \
	X(cuCtxSetCurrent, (void *))                                                               \
	X(cuModuleLoadData, (void **, const void *))                                               \
	X(cuModuleGetFunction, (void **, void *, const char *))                                    \
	X(cuStreamCreate, (void **, unsigned int))                                                 \
	X(cuStreamSynchronize, (void *))                                                           \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuEventCreate, (void **, unsigned int))                                                  \
	X(cuEventRecord, (void *, void *))                                                         \
	X(cuEventQuery, (void *))                                                                  \
	X(cuEventSynchronize, (void *))                                                            \
	X(cuMemAlloc_v2, (unsigned long long *, size_t))                                           \
	X(cuMemcpyDtoDAsync_v2, (unsigned long long, unsigned long long, size_t, void *))          \
	X(cuLaunchKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int,         \
			   unsigned int, unsigned int, unsigned int, void *, void **, void **))    \
	X(cuLaunchCooperativeKernel,                                                               \
	  (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,           \
	   unsigned int, unsigned int, void *, void **))                                           \
	X(cuLaunchKernelEx, (const void *, void *, void **, void **))                              \
	X(cuStreamBeginCapture_v2, (void *, int))                                                  \
	X(cuStreamEndCapture, (void *, void **))                                                   \
	X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                      \
	X(cuGraphLaunch, (void *, void *))

struct load_functions {
#define X(name, params) int(*name) params;
	ENTRIES(X)
#undef X
};

extern struct load_functions cu;

/* Fills `cu`; the driver's handle. Ends the program where a function is missing. */
void *open_driver(void);

static inline void check(int result, const char *call)
{
	if (!result)
		return;
	fprintf(stderr, "cuda-load: %s: error %d\n", call, result);
	exit(1);
}
#define CALL(name, ...) check(cu.name(__VA_ARGS__), #name)

#endif
