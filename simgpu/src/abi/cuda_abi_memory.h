/*
 * The part of cuda_abi.h for physical memory, arrays, and memory of other interfaces. cuda_abi.h
 * includes it. Enums are passed as int. A union has only the members that are simulated.
 */
#ifndef SIMGPU_CUDA_ABI_MEMORY_H
#define SIMGPU_CUDA_ABI_MEMORY_H

#define CU_IPC_HANDLE_SIZE 64

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUmipmap_st *CUmipmappedArray;
typedef struct CUextmem_st *CUexternalMemory;

enum { CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4, CU_MEM_HANDLE_TYPE_FABRIC = 8 };

typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef struct {
	size_t Width, Height;
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* The next two structs belong to the interface before CUDA 3.2. */
typedef struct {
	unsigned int Width, Height;
	int Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
	unsigned int Width, Height, Depth;
	int Format;
	unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

enum {
	CUDA_ARRAY3D_LAYERED = 0x01,
	CUDA_ARRAY3D_CUBEMAP = 0x04,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
	CUDA_ARRAY3D_FLAGS_MASK = 0xff,
};

typedef struct {
	size_t size, alignment;
	unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
	struct {
		unsigned int width, height, depth;
	} tileExtent;
	unsigned int miptailFirstLevel;
	unsigned long long miptailSize;
	unsigned int flags;
	unsigned int reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;

enum { CU_RESOURCE_TYPE_ARRAY = 0, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1 };
enum { CU_MEM_OPERATION_TYPE_MAP = 1, CU_MEM_OPERATION_TYPE_UNMAP = 2 };

typedef struct {
	int resourceType;
	union {
		CUmipmappedArray mipmap;
		CUarray array;
	} resource;
	int subresourceType;
	union {
		struct {
			unsigned int level, layer, offsetX, offsetY, offsetZ;
			unsigned int extentWidth, extentHeight, extentDepth;
		} sparseLevel;
		struct {
			unsigned int layer;
			unsigned long long offset, size;
		} miptail;
	} subresource;
	int memOperationType, memHandleType;
	union {
		CUmemGenericAllocationHandle memHandle;
	} memHandle;
	unsigned long long offset;
	unsigned int deviceBitMask, flags;
	unsigned int reserved[2];
} CUarrayMapInfo;

enum { CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1 };

typedef struct {
	int type;
	union {
		int fd;
		struct {
			void *handle;
			const void *name;
		} win32;
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
	unsigned long long offset, size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct {
	unsigned long long offset;
	CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
	unsigned int numLevels;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

#endif
