/*
 * The part of the CUDA driver API's ABI that the simulated drivers speak, on 64-bit Linux.
 *
 * Facts of NVIDIA's documented interface (sizes, values, names), written down here so that a C
 * compiler is all that is needed. Enums are passed as int. Holds no state and no code.
 */
#ifndef SIMGPU_CUDA_ABI_H
#define SIMGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define SIM_CUDA_VERSION 13000 /* the interface of driver 580: CUDA 13.0 */

/* name, value, what cuGetErrorString says */
#define CUDA_ERRORS(X)                                                                             \
	X(CUDA_SUCCESS, 0, "no error")                                                             \
	X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                         \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                            \
	X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                   \
	X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                     \
	X(CUDA_ERROR_STUB_LIBRARY, 34, "CUDA driver is a stub library")                            \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable")  \
	X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                         \
	X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                \
	X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                         \
	X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                               \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for the device")        \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")                \
	X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this architecture")        \
	X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                             \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX is of an unsupported version")         \
	X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "execution affinity is not supported")        \
	X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                        \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported")           \
	X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                               \
	X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                     \
	X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                           \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")             \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")      \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")               \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "primary context is active")                     \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                            \
	X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                             \
	X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                \
	X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                          \
	X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

#define CUDA_ERROR_ENUM(name, value, text) name = value,
typedef enum { CUDA_ERRORS(CUDA_ERROR_ENUM) } CUresult;
#undef CUDA_ERROR_ENUM

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint32_t CUdeviceptr_v1; /* of the interface before CUDA 3.2 */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;
typedef size_t (*CUoccupancyB2DSize)(int block_size);

typedef struct {
	uint8_t bytes[16];
} CUuuid;

typedef struct {
	int maxThreadsPerBlock;
	int maxThreadsDim[3];
	int maxGridSize[3];
	int sharedMemPerBlock;
	int totalConstantMemory;
	int SIMDWidth;
	int memPitch;
	int regsPerBlock;
	int clockRate;
	int textureAlign;
} CUdevprop;

typedef struct {
	size_t srcXInBytes;
	size_t srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} CUDA_MEMCPY2D;

typedef struct {
	unsigned int gridDimX;
	unsigned int gridDimY;
	unsigned int gridDimZ;
	unsigned int blockDimX;
	unsigned int blockDimY;
	unsigned int blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	const void *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum { CU_CTX_SCHED_MASK = 0x07, CU_CTX_FLAGS_MASK = 0xFF };
enum { CU_STREAM_NON_BLOCKING = 0x1 };
enum { CU_EVENT_DISABLE_TIMING = 0x2, CU_EVENT_INTERPROCESS = 0x4, CU_EVENT_FLAGS_MASK = 0x7 };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED };
enum { CU_MEMHOSTALLOC_FLAGS_MASK = 0x7, CU_MEMHOSTALLOC_DEVICEMAP = 0x2 };
enum { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
enum {
	CU_GET_PROC_ADDRESS_SUCCESS,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
};

#endif
