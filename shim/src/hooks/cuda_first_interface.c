/*
 * Wrappers of work that the first interface submits, of 2009, and of launches on several GPUs at
 * once, which wait for the current one. They have no twins for per-thread default streams.
 */
#include "compute/launch.h"
#include "loader/hooks.h"

#define SUBMITTING(symbol, stream, handle, size, params, args)                                     \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_launch launch;                                                         \
		CUresult result;                                                                   \
                                                                                                   \
		vgpu_launch_begin(&launch, stream, (uint64_t)(uintptr_t)(handle), size);           \
		result = real_##symbol args;                                                       \
		vgpu_launch_end(&launch);                                                          \
		return result;                                                                     \
	}

SUBMITTING(cuLaunch, NULL, function, 0, (CUfunction function), (function))
SUBMITTING(cuLaunchGrid, NULL, function, 0, (CUfunction function, int width, int height),
	   (function, width, height))
SUBMITTING(cuLaunchGridAsync, stream, function, 0,
	   (CUfunction function, int width, int height, CUstream stream),
	   (function, width, height, stream))
SUBMITTING(cuLaunchCooperativeKernelMultiDevice, NULL, &cuLaunchCooperativeKernelMultiDevice, 0,
	   (void *launches, unsigned int count, unsigned int flags), (launches, count, flags))

SUBMITTING(cuMemcpyHtoD, NULL, &cuMemcpyHtoD, bytes,
	   (CUdeviceptr_v1 to, const void *from, unsigned int bytes), (to, from, bytes))
SUBMITTING(cuMemcpyDtoH, NULL, &cuMemcpyDtoH, bytes,
	   (void *to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
SUBMITTING(cuMemcpyDtoD, NULL, &cuMemcpyDtoD, bytes,
	   (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
SUBMITTING(cuMemcpyDtoA, NULL, &cuMemcpyDtoA, bytes,
	   (CUarray to, unsigned int offset, CUdeviceptr_v1 from, unsigned int bytes),
	   (to, offset, from, bytes))
SUBMITTING(cuMemcpyAtoD, NULL, &cuMemcpyAtoD, bytes,
	   (CUdeviceptr_v1 to, CUarray from, unsigned int offset, unsigned int bytes),
	   (to, from, offset, bytes))
SUBMITTING(cuMemcpyHtoA, NULL, &cuMemcpyHtoA, bytes,
	   (CUarray to, unsigned int offset, const void *from, unsigned int bytes),
	   (to, offset, from, bytes))
SUBMITTING(cuMemcpyAtoH, NULL, &cuMemcpyAtoH, bytes,
	   (void *to, CUarray from, unsigned int offset, unsigned int bytes),
	   (to, from, offset, bytes))
SUBMITTING(cuMemcpyAtoA, NULL, &cuMemcpyAtoA, bytes,
	   (CUarray to, unsigned int to_offset, CUarray from, unsigned int offset,
	    unsigned int bytes),
	   (to, to_offset, from, offset, bytes))
SUBMITTING(cuMemcpy2D, NULL, &cuMemcpy2D, 0, (const void *copy), (copy))
SUBMITTING(cuMemcpy2DUnaligned, NULL, &cuMemcpy2DUnaligned, 0, (const void *copy), (copy))
SUBMITTING(cuMemcpy3D, NULL, &cuMemcpy3D, 0, (const void *copy), (copy))
SUBMITTING(cuMemcpyHtoDAsync, stream, &cuMemcpyHtoDAsync, bytes,
	   (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
	   (to, from, bytes, stream))
SUBMITTING(cuMemcpyDtoHAsync, stream, &cuMemcpyDtoHAsync, bytes,
	   (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
	   (to, from, bytes, stream))
SUBMITTING(cuMemcpyDtoDAsync, stream, &cuMemcpyDtoDAsync, bytes,
	   (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
	   (to, from, bytes, stream))
SUBMITTING(cuMemcpyHtoAAsync, stream, &cuMemcpyHtoAAsync, bytes,
	   (CUarray to, unsigned int offset, const void *from, unsigned int bytes, CUstream stream),
	   (to, offset, from, bytes, stream))
SUBMITTING(cuMemcpyAtoHAsync, stream, &cuMemcpyAtoHAsync, bytes,
	   (void *to, CUarray from, unsigned int offset, unsigned int bytes, CUstream stream),
	   (to, from, offset, bytes, stream))
SUBMITTING(cuMemcpy2DAsync, stream, &cuMemcpy2DAsync, 0, (const void *copy, CUstream stream),
	   (copy, stream))
SUBMITTING(cuMemcpy3DAsync, stream, &cuMemcpy3DAsync, 0, (const void *copy, CUstream stream),
	   (copy, stream))
SUBMITTING(cuMemsetD8, NULL, &cuMemsetD8, count,
	   (CUdeviceptr_v1 to, unsigned char value, unsigned int count), (to, value, count))
SUBMITTING(cuMemsetD16, NULL, &cuMemsetD16, count,
	   (CUdeviceptr_v1 to, unsigned short value, unsigned int count), (to, value, count))
SUBMITTING(cuMemsetD32, NULL, &cuMemsetD32, count,
	   (CUdeviceptr_v1 to, unsigned int value, unsigned int count), (to, value, count))
SUBMITTING(cuMemsetD2D8, NULL, &cuMemsetD2D8, (uint64_t)width *height,
	   (CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width,
	    unsigned int height),
	   (to, pitch, value, width, height))
SUBMITTING(cuMemsetD2D16, NULL, &cuMemsetD2D16, (uint64_t)width *height,
	   (CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width,
	    unsigned int height),
	   (to, pitch, value, width, height))
SUBMITTING(cuMemsetD2D32, NULL, &cuMemsetD2D32, (uint64_t)width *height,
	   (CUdeviceptr_v1 to, unsigned int pitch, unsigned int value, unsigned int width,
	    unsigned int height),
	   (to, pitch, value, width, height))
