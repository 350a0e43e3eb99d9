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

/* Name, value, what cuGetErrorString says; those of CUDA 13.0. */
#define CUDA_ERRORS(X)                                                                             \
	X(CUDA_SUCCESS, 0, "no error")                                                             \
	X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                         \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                            \
	X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                   \
	X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                     \
	X(CUDA_ERROR_PROFILER_DISABLED, 5, "profiler disabled")                                    \
	X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6, "profiler not initialized")                      \
	X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7, "profiler already started")                      \
	X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8, "profiler already stopped")                      \
	X(CUDA_ERROR_STUB_LIBRARY, 34, "CUDA driver is a stub library")                            \
	X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, "call requires newer driver")                 \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable")  \
	X(CUDA_ERROR_MULTICAST_RESOURCE_FULL, 47, "multicast resource full")                       \
	X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                         \
	X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                \
	X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "device not licensed")                              \
	X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                         \
	X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                               \
	X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "context already current")                      \
	X(CUDA_ERROR_MAP_FAILED, 205, "map failed")                                                \
	X(CUDA_ERROR_UNMAP_FAILED, 206, "unmap failed")                                            \
	X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "array is mapped")                                      \
	X(CUDA_ERROR_ALREADY_MAPPED, 208, "already mapped")                                        \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for the device")        \
	X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "already acquired")                                    \
	X(CUDA_ERROR_NOT_MAPPED, 211, "not mapped")                                                \
	X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "not mapped as array")                              \
	X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "not mapped as pointer")                          \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")                \
	X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this architecture")        \
	X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "context already in use")                        \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access unsupported")                      \
	X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                             \
	X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "invalid graphics context")                    \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "nvlink uncorrectable")                            \
	X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "jit compiler not found")                        \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX is of an unsupported version")         \
	X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "jit compilation disabled")                    \
	X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "execution affinity is not supported")        \
	X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, "unsupported devside sync")                    \
	X(CUDA_ERROR_CONTAINED, 226, "contained")                                                  \
	X(CUDA_ERROR_INSUFFICIENT_LOADER_VERSION, 227, "insufficient loader version")              \
	X(CUDA_ERROR_INVALID_SOURCE, 300, "invalid source")                                        \
	X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                        \
	X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "shared object symbol not found")        \
	X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object init failed")                  \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported")           \
	X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                               \
	X(CUDA_ERROR_ILLEGAL_STATE, 401, "illegal state")                                          \
	X(CUDA_ERROR_LOSSY_QUERY, 402, "lossy query")                                              \
	X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                     \
	X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                           \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")             \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")      \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")               \
	X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "launch incompatible texturing")          \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access already enabled")              \
	X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access not enabled")                      \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "primary context is active")                     \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                            \
	X(CUDA_ERROR_ASSERT, 710, "assert")                                                        \
	X(CUDA_ERROR_TOO_MANY_PEERS, 711, "too many peers")                                        \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "host memory already registered")        \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "host memory not registered")                \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                            \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "illegal instruction")                              \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                                \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "invalid address space")                          \
	X(CUDA_ERROR_INVALID_PC, 718, "invalid pc")                                                \
	X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                             \
	X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "cooperative launch too large")            \
	X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory leak")                                \
	X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                \
	X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                          \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "system driver mismatch")                        \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "compat not supported on device")        \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, "mps connection failed")                          \
	X(CUDA_ERROR_MPS_RPC_FAILURE, 806, "mps rpc failure")                                      \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "mps server not ready")                            \
	X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, "mps max clients reached")                      \
	X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, "mps max connections reached")              \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "mps client terminated")                          \
	X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, "cdp not supported")                                  \
	X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, "cdp version mismatch")                            \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "stream capture unsupported")                \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "stream capture invalidated")                \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "stream capture merge")                            \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "stream capture unmatched")                    \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "stream capture unjoined")                      \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "stream capture isolation")                    \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "stream capture implicit")                      \
	X(CUDA_ERROR_CAPTURED_EVENT, 907, "captured event")                                        \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "stream capture wrong thread")              \
	X(CUDA_ERROR_TIMEOUT, 909, "timeout")                                                      \
	X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "graph exec update failure")                  \
	X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "external device")                                      \
	X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "invalid cluster size")                            \
	X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "function not loaded")                              \
	X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type")                          \
	X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration")        \
	X(CUDA_ERROR_KEY_ROTATION, 916, "key rotation")                                            \
	X(CUDA_ERROR_STREAM_DETACHED, 917, "stream detached")                                      \
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
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
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
	int type, id;
} CUmemLocation;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	int allocType, handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	_Alignas(8) unsigned char reserved[64];
} CUmemPoolPtrExportData;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };

typedef struct {
	int id;
	union {
		_Alignas(8) char bytes[64];
		int cooperative;
		struct {
			unsigned int x, y, z;
		} clusterDim;
	} value;
} CUlaunchAttribute;

typedef struct {
	unsigned int gridDimX;
	unsigned int gridDimY;
	unsigned int gridDimZ;
	unsigned int blockDimX;
	unsigned int blockDimY;
	unsigned int blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	const CUlaunchAttribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
	CUfunction function;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	void **kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

/* Of a resource's kinds there is one. */
typedef struct {
	int type;
	unsigned char padding[92];
	unsigned int smCount;
	unsigned char rest[44];
} CUdevResource;

/* Of version 2; version 1 ends before `kern`. */
typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	int type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		struct {
			CUgraph graph;
			int ownership; /* 0: cloned, 1: moved to the parent */
		} graph;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		struct {
			CUdeviceptr dptr;
		} free;
	} of;
	long long reserved2;
} CUgraphNodeParams;

typedef struct {
	int result;
	CUgraphNode errorNode;
	CUgraphNode errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct {
	uint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

enum {
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_EMPTY = 5,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
};
enum {
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
	CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
};
enum { CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH = 1, CU_GRAPH_INSTANTIATE_UPLOAD = 2 };
enum { CU_STREAM_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_RELAXED };

#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum { CU_CTX_SCHED_MASK = 0x07, CU_CTX_FLAGS_MASK = 0xFF };
enum { CU_STREAM_NON_BLOCKING = 0x1 };
enum { CU_EVENT_DISABLE_TIMING = 0x2, CU_EVENT_INTERPROCESS = 0x4, CU_EVENT_FLAGS_MASK = 0x7 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED };
enum {
	CU_MEM_LOCATION_TYPE_NONE,
	CU_MEM_LOCATION_TYPE_DEVICE,
	CU_MEM_LOCATION_TYPE_HOST,
	CU_MEM_LOCATION_TYPE_HOST_NUMA,
	CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6
};
enum { CU_MEM_ACCESS_READ = 1, CU_MEM_ACCESS_READWRITE = 3 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum {
	CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH,
};
enum { CU_MEMHOSTALLOC_FLAGS_MASK = 0x7, CU_MEMHOSTALLOC_DEVICEMAP = 0x2 };
enum {
	CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
	CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY = 3,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
	CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9,
	CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
};
enum { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
enum {
	CU_GET_PROC_ADDRESS_SUCCESS,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
};

#include "cuda_abi_memory.h"

#endif
