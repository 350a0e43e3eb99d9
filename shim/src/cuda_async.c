/* Wrappers of stream-ordered memory. */
#include "hooks.h"

CUresult on_cuMemAllocAsync(enum vgpu_function real, CUdeviceptr *dptr, size_t size_bytes,
			    CUstream stream)
{
	return as_cuMemAllocAsync(real, dptr, size_bytes, stream);
}
