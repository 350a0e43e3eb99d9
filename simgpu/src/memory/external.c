/*
 * Memory of other interfaces, such as Vulkan. These are not simulated, so programs import a
 * descriptor from cuMemExportToShareableHandle instead. The import holds the descriptor's physical
 * memory until the import is destroyed. A mapping holds the memory until the mapping is freed. Both
 * end with the context in which they were made.
 */
#include "memory/array.h"

#include <unistd.h>

struct external {
	struct object object;
	struct context *context;
	struct physical *memory;
	uint64_t bytes;
};

/* If the import succeeds, the driver owns the descriptor, as a real driver does. */
CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct external *external;
	struct physical *memory;
	struct context *context;
	CUmemGenericAllocationHandle handle;
	CUresult result;

	TRY(context_enter(NULL, &context));
	driver_unlock();
	if (!out || !desc || !desc->size || desc->flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)desc->handle.fd,
					   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	driver_lock();
	memory = physical_get(handle);
	result = context_current(&context); /* another thread may have destroyed the context */
	if (result == CUDA_SUCCESS && desc->size > memory->bytes)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		external = object_new(OBJECT_EXTERNAL, sizeof(*external));
		physical_pin(memory);
		external->context = context;
		external->memory = memory;
		external->bytes = desc->size;
		*out = object_handle(external);
		close(desc->handle.fd);
	}
	physical_release(memory);
	return physical_leave(result);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct external *external;
	struct context *context;

	TRY(context_enter(NULL, &context));
	external = object_get(handle, OBJECT_EXTERNAL);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !desc || desc->flags || !desc->size || desc->size > external->bytes ||
	    desc->offset > external->bytes - desc->size)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(buffer_map(context, external->memory, desc->offset, desc->size, out));
}

/* The image lies in the imported memory and holds it, so it takes no further GPU memory. */
CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory handle,
					const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	struct external *external;
	struct physical *memory;
	CUresult result;

	TRY(driver_enter());
	external = object_get(handle, OBJECT_EXTERNAL);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !desc || desc->offset >= external->bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memory = external->memory;
	physical_pin(memory);
	driver_unlock();
	result = array_make(&desc->arrayDesc, desc->numLevels, OBJECT_MIPMAP, memory, (void **)out);
	if (result == CUDA_SUCCESS)
		return result;
	driver_lock();
	physical_unpin(memory);
	return physical_leave(result);
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle)
{
	struct external *external;

	TRY(driver_enter());
	external = object_get(handle, OBJECT_EXTERNAL);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	physical_unpin(external->memory);
	object_free(external);
	return physical_leave(CUDA_SUCCESS);
}

void externals_forget(struct context *context)
{
	struct external *external;
	uint32_t at = 0;

	while ((external = object_next(OBJECT_EXTERNAL, &at)))
		if (external->context == context) {
			physical_unpin(external->memory);
			object_free(external);
		}
	buffers_forget(context);
}
