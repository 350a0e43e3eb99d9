/*
 * The entry points of the null driver, in one list: symbol, base name, first CUDA version.
 */
#ifndef SIMGPU_NULL_ENTRY_H
#define SIMGPU_NULL_ENTRY_H

#include "abi/cuda_abi.h"

typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

/* clang-format off */
#define NULL_ENTRIES(X)                                                                            \
	X(cuInit, cuInit, 2000, (unsigned int))                                                    \
	X(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *))                                   \
	X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *))                                       \
	X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *, int))                                       \
	X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, (CUuuid *, CUdevice))                            \
	X(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                        \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int *, int, CUdevice))                \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))       \
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
	X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                            \
	X(cuKernelGetFunction, cuKernelGetFunction, 12000, (CUfunction *, CUkernel))               \
	X(cuKernelSetAttribute, cuKernelSetAttribute, 12000, (int, int, CUkernel, CUdevice))       \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,                     \
	  (size_t *, const void *, int))                                                           \
	X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream))                              \
	X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream, CUcontext *))                           \
	X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, (CUstream, int *))                      \
	X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, (int *))    \
	X(cuEventCreate, cuEventCreate, 2000, (CUevent *, unsigned int))                           \
	X(cuEventRecord, cuEventRecord, 2000, (CUevent, CUstream))                                 \
	X(cuEventQuery, cuEventQuery, 2000, (CUevent))                                             \
	X(cuEventDestroy_v2, cuEventDestroy, 4000, (CUevent))                                      \
	X(cuMemAllocAsync, cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream))              \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020,                                 \
	  (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                         \
	X(cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))                          \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice)) \
	X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, (CUmemoryPool *, CUdevice))               \
	X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, (CUdevice, CUmemoryPool))                 \
	X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, (CUmemoryPool, int, void *))        \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, (CUmemoryPool, int, void *))        \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t))                         \
	X(cuGetProcAddress, cuGetProcAddress, 11030, (const char *, void **, int, uint64_t))       \
	X(cuGetProcAddress_v2, cuGetProcAddress, 12000,                                            \
	  (const char *, void **, int, uint64_t, int *))

/* Symbol, the suffix of its twin for per-thread default streams, and the version of the twin. */
#define NULL_TWINS(X)                                                                              \
	X(cuLaunchKernel, _ptsz, 7000,                                                             \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,       \
	   unsigned int, unsigned int, CUstream, void **, void **))                                \
	X(cuGraphLaunch, _ptsz, 10000, (CUgraphExec, CUstream))                                    \
	X(cuStreamGetCtx, _ptsz, 9020, (CUstream, CUcontext *))                                    \
	X(cuStreamIsCapturing, _ptsz, 10000, (CUstream, int *))                                    \
	X(cuEventRecord, _ptsz, 7000, (CUevent, CUstream))

/* The same for what null_pool.c defines. */
#define NULL_POOL_TWINS(X)                                                                         \
	X(cuStreamSynchronize, _ptsz, 7000, (CUstream))                                            \
	X(cuMemAllocAsync, _ptsz, 11020, (CUdeviceptr *, size_t, CUstream))                        \
	X(cuMemAllocFromPoolAsync, _ptsz, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))  \
	X(cuMemFreeAsync, _ptsz, 11020, (CUdeviceptr, CUstream))
/* clang-format on */

#pragma GCC visibility push(default)
#define NULL_PROTOTYPE(symbol, base, since, params) CUresult symbol params;
NULL_ENTRIES(NULL_PROTOTYPE)
#undef NULL_PROTOTYPE
#define NULL_PROTOTYPE(symbol, suffix, since, params) CUresult symbol##suffix params;
NULL_TWINS(NULL_PROTOTYPE)
NULL_POOL_TWINS(NULL_PROTOTYPE)
#undef NULL_PROTOTYPE
#pragma GCC visibility pop

#endif
