/*
 * Memory of other interfaces (Vulkan and the like). There is none here, so a descriptor that
 * cuMemExportToShareableHandle made stands for one: it names physical memory of a card, which the
 * import holds until it is destroyed. What is mapped of it holds it too, until it is freed.
 */
#include "array.h"

#include <unistd.h>

struct external {
	struct object object;
	struct physical *memory;
	uint64_t bytes;
};

static struct external *external_get(CUexternalMemory handle)
{
	return object_get(handle, OBJECT_EXTERNAL);
}

/* As a real driver, this one owns the descriptor from here on. */
CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct external *external = NULL;
	struct physical *memory = NULL;
	CUmemGenericAllocationHandle handle;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	driver_unlock();
	if (!out || !desc || !desc->size || desc->flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)desc->handle.fd,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return result;
	driver_lock();
	memory = physical_get(handle);
	if (desc->size <= memory->bytes)
		external = object_new(OBJECT_EXTERNAL, sizeof(*external));
	else
		result = CUDA_ERROR_INVALID_VALUE;
	if (external) {
		physical_pin(memory);
		external->memory = memory;
		external->bytes = desc->size;
		*out = object_handle(external);
		close(desc->handle.fd);
	} else if (result == CUDA_SUCCESS) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical_release(memory);
	return physical_leave(result);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct external *external;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	external = external_get(handle);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !desc || desc->flags || !desc->size || desc->size > external->bytes ||
	    desc->offset > external->bytes - desc->size)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(buffer_map(external->memory, desc->offset, desc->size, out));
}

/* The image lies in the imported memory: none of the card's is taken for it. */
CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory handle,
					const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	struct external *external;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	external = external_get(handle);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !desc || desc->offset >= external->bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	driver_unlock();
	return array_make(&desc->arrayDesc, desc->numLevels, OBJECT_MIPMAP, true, (void **)out);
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle)
{
	struct external *external;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	external = external_get(handle);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	physical_unpin(external->memory);
	object_free(external);
	return physical_leave(CUDA_SUCCESS);
}
