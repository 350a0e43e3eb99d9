/*
 * The entry points of the null driver, in one list: symbol, base name, first CUDA version.
 */
#ifndef SIMGPU_NULL_ENTRY_H
#define SIMGPU_NULL_ENTRY_H

#include "cuda_abi.h"

/* clang-format off */
#define NULL_ENTRIES(X)                                                                            \
	X(cuInit, cuInit, 2000, (unsigned int))                                                    \
	X(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *))                                   \
	X(cuGetErrorName, cuGetErrorName, 6000, (int, const char **))                              \
	X(cuGetErrorString, cuGetErrorString, 6000, (int, const char **))                          \
	X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *))                                       \
	X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *, int))                                       \
	X(cuDeviceGetName, cuDeviceGetName, 2000, (char *, int, CUdevice))                         \
	X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, (CUuuid *, CUdevice))                            \
	X(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                        \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int *, int, CUdevice))                \
	X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *, CUdevice))                       \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))       \
	X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, (CUdevice))              \
	X(cuCtxCreate_v2, cuCtxCreate, 3020, (CUcontext *, unsigned int, CUdevice))                \
	X(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext))                                        \
	X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext))                                     \
	X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *))                                   \
	X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *))                                      \
	X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                                        \
	X(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                \
	X(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr))                                            \
	X(cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *, size_t *))                               \
	X(cuLaunchKernel, cuLaunchKernel, 4000,                                                    \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,       \
	   unsigned int, unsigned int, CUstream, void **, void **))                                \
	X(cuGetProcAddress, cuGetProcAddress, 11030, (const char *, void **, int, uint64_t))       \
	X(cuGetProcAddress_v2, cuGetProcAddress, 12000,                                            \
	  (const char *, void **, int, uint64_t, int *))
/* clang-format on */

#pragma GCC visibility push(default)
#define NULL_PROTOTYPE(symbol, base, since, params) CUresult symbol params;
NULL_ENTRIES(NULL_PROTOTYPE)
#undef NULL_PROTOTYPE
#pragma GCC visibility pop

#endif
