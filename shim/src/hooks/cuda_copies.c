/*
 * Wrappers of copies and sets, which occupy the GPU as launches do: each waits for the container's
 * turn. A copy that returns when it is done also shows that earlier work is.
 */
#include "compute/launch.h"
#include "loader/hooks.h"

/* Copies of about one size cost about the same; of those described by a structure, all. */
#define COPYING(symbol, own, size, args)                                                           \
	struct vgpu_launch launch;                                                                 \
	CUresult result;                                                                           \
                                                                                                   \
	vgpu_launch_begin(&launch, own, (uint64_t)(uintptr_t)&on_##symbol, size);                  \
	result = as_##symbol args;                                                                 \
	vgpu_launch_end(&launch);                                                                  \
	return result;
#define COPYING_LATER(symbol, size, params, args)                                                  \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		COPYING(symbol, vgpu_own_stream(stream, real == VGPU_ID_##symbol##_ptsz), size,    \
			args)                                                                      \
	}
/* Sets return before they are done. */
#define COPYING_SET(symbol, size, params, args)                                                    \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		COPYING(symbol, vgpu_own_stream(NULL, real == VGPU_ID_##symbol##_ptds), size,      \
			args)                                                                      \
	}
#define COPYING_NOW(symbol, size, params, args)                                                    \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params)                            \
	{                                                                                          \
		CUstream own = vgpu_own_stream(NULL, real == VGPU_ID_##symbol##_ptds);             \
		struct vgpu_launch launch;                                                         \
		uint64_t since_ns;                                                                 \
		CUresult result;                                                                   \
                                                                                                   \
		vgpu_launch_begin(&launch, own, (uint64_t)(uintptr_t)&on_##symbol, size);          \
		since_ns = vgpu_launches_wait_begins(own, false);                                  \
		result = as_##symbol args;                                                         \
		vgpu_launch_end(&launch);                                                          \
		vgpu_launches_wait_ended(since_ns, own, false, result == CUDA_SUCCESS);            \
		return result;                                                                     \
	}

COPYING_NOW(cuMemcpy, bytes, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
	    (real, to, from, bytes))
COPYING_NOW(cuMemcpyHtoD_v2, bytes, (CUdeviceptr to, const void *from, size_t bytes),
	    (real, to, from, bytes))
COPYING_NOW(cuMemcpyDtoH_v2, bytes, (void *to, CUdeviceptr from, size_t bytes),
	    (real, to, from, bytes))
COPYING_NOW(cuMemcpyDtoD_v2, bytes, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
	    (real, to, from, bytes))
COPYING_NOW(cuMemcpyDtoA_v2, bytes, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
	    (real, to, offset, from, bytes))
COPYING_NOW(cuMemcpyAtoD_v2, bytes, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
	    (real, to, from, offset, bytes))
COPYING_NOW(cuMemcpyHtoA_v2, bytes, (CUarray to, size_t offset, const void *from, size_t bytes),
	    (real, to, offset, from, bytes))
COPYING_NOW(cuMemcpyAtoH_v2, bytes, (void *to, CUarray from, size_t offset, size_t bytes),
	    (real, to, from, offset, bytes))
COPYING_NOW(cuMemcpyAtoA_v2, bytes,
	    (CUarray to, size_t to_offset, CUarray from, size_t offset, size_t bytes),
	    (real, to, to_offset, from, offset, bytes))
COPYING_NOW(cuMemcpy2D_v2, 0, (const void *copy), (real, copy))
COPYING_NOW(cuMemcpy2DUnaligned_v2, 0, (const void *copy), (real, copy))
COPYING_NOW(cuMemcpy3D_v2, 0, (const void *copy), (real, copy))
COPYING_NOW(cuMemcpyPeer, bytes,
	    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext context,
	     size_t bytes),
	    (real, to, to_context, from, context, bytes))
COPYING_NOW(cuMemcpy3DPeer, 0, (const void *copy), (real, copy))
COPYING_SET(cuMemsetD8_v2, count, (CUdeviceptr to, unsigned char value, size_t count),
	    (real, to, value, count))
COPYING_SET(cuMemsetD16_v2, count, (CUdeviceptr to, unsigned short value, size_t count),
	    (real, to, value, count))
COPYING_SET(cuMemsetD32_v2, count, (CUdeviceptr to, unsigned int value, size_t count),
	    (real, to, value, count))
COPYING_SET(cuMemsetD2D8_v2, width *height,
	    (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
	    (real, to, pitch, value, width, height))
COPYING_SET(cuMemsetD2D16_v2, width *height,
	    (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
	    (real, to, pitch, value, width, height))
COPYING_SET(cuMemsetD2D32_v2, width *height,
	    (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height),
	    (real, to, pitch, value, width, height))
COPYING_LATER(cuMemcpyAsync, bytes,
	      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	      (real, to, from, bytes, stream))
COPYING_LATER(cuMemcpyHtoDAsync_v2, bytes,
	      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
	      (real, to, from, bytes, stream))
COPYING_LATER(cuMemcpyDtoHAsync_v2, bytes,
	      (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
	      (real, to, from, bytes, stream))
COPYING_LATER(cuMemcpyDtoDAsync_v2, bytes,
	      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	      (real, to, from, bytes, stream))
COPYING_LATER(cuMemcpyHtoAAsync_v2, bytes,
	      (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
	      (real, to, offset, from, bytes, stream))
COPYING_LATER(cuMemcpyAtoHAsync_v2, bytes,
	      (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
	      (real, to, from, offset, bytes, stream))
COPYING_LATER(cuMemcpy2DAsync_v2, 0, (const void *copy, CUstream stream), (real, copy, stream))
COPYING_LATER(cuMemcpy3DAsync_v2, 0, (const void *copy, CUstream stream), (real, copy, stream))
COPYING_LATER(cuMemcpyPeerAsync, bytes,
	      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext context,
	       size_t bytes, CUstream stream),
	      (real, to, to_context, from, context, bytes, stream))
COPYING_LATER(cuMemcpy3DPeerAsync, 0, (const void *copy, CUstream stream), (real, copy, stream))
COPYING_LATER(cuMemcpyBatchAsync, 0,
	      (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
	       size_t *indexes, size_t attribute_count, size_t *failed, CUstream stream),
	      (real, to, from, sizes, count, attributes, indexes, attribute_count, failed, stream))
COPYING_LATER(cuMemcpyBatchAsync_v2, 0,
	      (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
	       size_t *indexes, size_t attribute_count, CUstream stream),
	      (real, to, from, sizes, count, attributes, indexes, attribute_count, stream))
COPYING_LATER(cuMemcpy3DBatchAsync, 0,
	      (size_t count, void *copies, size_t *failed, unsigned long long flags,
	       CUstream stream),
	      (real, count, copies, failed, flags, stream))
COPYING_LATER(cuMemcpy3DBatchAsync_v2, 0,
	      (size_t count, void *copies, unsigned long long flags, CUstream stream),
	      (real, count, copies, flags, stream))
COPYING_LATER(cuMemcpyWithAttributesAsync, bytes,
	      (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),
	      (real, to, from, bytes, attributes, stream))
COPYING_LATER(cuMemcpy3DWithAttributesAsync, 0,
	      (void *copy, unsigned long long flags, CUstream stream), (real, copy, flags, stream))
COPYING_LATER(cuFabricCpyBatchAsync, 0,
	      (size_t count, void *copies, unsigned long long flags, CUstream stream),
	      (real, count, copies, flags, stream))
COPYING_LATER(cuMemPrefetchAsync, bytes,
	      (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
	      (real, address, bytes, device, stream))
COPYING_LATER(cuMemPrefetchAsync_v2, bytes,
	      (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
	       CUstream stream),
	      (real, address, bytes, location, flags, stream))
COPYING_LATER(cuMemPrefetchBatchAsync, 0,
	      (CUdeviceptr * addresses, size_t *sizes, size_t count, CUmemLocation *locations,
	       size_t *indexes, size_t location_count, unsigned long long flags, CUstream stream),
	      (real, addresses, sizes, count, locations, indexes, location_count, flags, stream))
COPYING_LATER(cuMemDiscardAndPrefetchBatchAsync, 0,
	      (CUdeviceptr * addresses, size_t *sizes, size_t count, CUmemLocation *locations,
	       size_t *indexes, size_t location_count, unsigned long long flags, CUstream stream),
	      (real, addresses, sizes, count, locations, indexes, location_count, flags, stream))
COPYING_LATER(cuMemBatchDecompressAsync, 0,
	      (void *parameters, size_t count, unsigned int flags, size_t *failed, CUstream stream),
	      (real, parameters, count, flags, failed, stream))
COPYING_LATER(cuMemsetD8Async, count,
	      (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
	      (real, to, value, count, stream))
COPYING_LATER(cuMemsetD16Async, count,
	      (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
	      (real, to, value, count, stream))
COPYING_LATER(cuMemsetD32Async, count,
	      (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
	      (real, to, value, count, stream))
COPYING_LATER(cuMemsetD2D8Async, width *height,
	      (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
	       CUstream stream),
	      (real, to, pitch, value, width, height, stream))
COPYING_LATER(cuMemsetD2D16Async, width *height,
	      (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
	       CUstream stream),
	      (real, to, pitch, value, width, height, stream))
COPYING_LATER(cuMemsetD2D32Async, width *height,
	      (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
	       CUstream stream),
	      (real, to, pitch, value, width, height, stream))
