/*
 * The few types and codes of the CUDA driver API that the library uses.
 *
 * They are facts about NVIDIA's ABI, from cuda.h and cudaTypedefs.h of CUDA 13.0. Drivers also
 * export the API of 2009, with sizes and device pointers of 32 bits: those functions lack the
 * suffix _v2 of their successors. The library hooks only that API's allocations.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* an enum in cuda.h, passed as an int */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

typedef struct CUarray_st *CUarray;
typedef struct CUmipmap_st *CUmipmappedArray;
typedef struct CUextmem_st *CUexternalMemory;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	unsigned char bytes[16];
} CUuuid;

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int allocation_type, handle_types;
	CUmemLocation location;
	void *security;
	size_t max_bytes;
	unsigned char rest[56];
} CUmemPoolProps;

typedef struct {
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	void *attributes;
	unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
	CUmemPoolProps pool;
	const void *access;
	size_t access_count;
	size_t size_bytes;
	CUdeviceptr address;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	uint64_t flags;
	CUstream upload_stream;
	CUgraphNode wrong_node;
	int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
	int type, handle_types;
	CUmemLocation location;
	void *win32_metadata;
	unsigned char flags[8];
} CUmemAllocationProp;

enum {
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6, /* id & 0xff is the device */
};

enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };

typedef struct CUmulticastObjectProp_st CUmulticastObjectProp;

typedef struct {
	size_t width, height;
	int format;
	unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	size_t width, height, depth;
	int format;
	unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

enum {
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

typedef struct {
	size_t size_bytes, alignment;
	unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
	int resource_type;
	uint64_t resource; /* CUarray or CUmipmappedArray */
	int subresource_type;
	uint64_t subresource[4];
	int operation, handle_type;
	CUmemGenericAllocationHandle memory;
	uint64_t offset;
	unsigned int device_mask, flags, reserved[2];
} CUarrayMapInfo;

enum { CU_MEM_OPERATION_TYPE_MAP = 1 };

typedef struct {
	int type;
	uint64_t handle[2];
	uint64_t size_bytes;
	unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

enum {
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
	CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
};

/* Flags of cuGetProcAddress: the kind of default stream for which the program was compiled. */
enum {
	CU_GET_PROC_ADDRESS_DEFAULT = 0,
	CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};
