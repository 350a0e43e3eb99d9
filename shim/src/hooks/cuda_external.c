/*
 * Wrappers of memory imported from other interfaces (Vulkan, OpenGL, Direct3D, NvSciBuf). An import
 * is charged the size that the program declares, until the program has destroyed the import and
 * freed all views that were mapped from it. The import and each view are claims (claims.h).
 * cuMemFree and cuMipmappedArrayDestroy end the claims of views.
 */
#include <stdbool.h>

#include "charge/claims.h"
#include "charge/device_memory.h"
#include "charge/place.h"
#include "loader/hooks.h"
#include "os/step.h"
#include "vgpu/region.h"

CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXTERNAL};
	struct vgpu_physical held = {.device = 0};
	CUresult result;
	struct vgpu_place place;
	uint32_t claim;

	if (!memory || !described || !described->size_bytes)
		return real_cuImportExternalMemory(memory, described);
	result = vgpu_place_current(&place);
	if (result != CUDA_SUCCESS || place.gpu == VGPU_GPU_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuImportExternalMemory(memory, described)
					      : result;
	to.extent = place.context;
	result = vgpu_claim_reserved(place, vgpu_whole_blocks(place.gpu, described->size_bytes),
				     &held, &claim);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuImportExternalMemory(memory, described);
	VGPU_AT(EXTERNAL_CALLED);
	to.key = result == CUDA_SUCCESS ? (uintptr_t)*memory : 0;
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint32_t claim = vgpu_take_claim(VGPU_CLAIM_EXTERNAL, (uintptr_t)memory);
	CUresult result = real_cuDestroyExternalMemory(memory);

	vgpu_settle_claims(claim, result);
	return result;
}

/* The claim of a view, with the context whose end also ends the view. */
static struct vgpu_claim_to as_view(uint64_t key)
{
	struct vgpu_place place;

	return (struct vgpu_claim_to){
	    .kind = VGPU_CLAIM_VIEW,
	    .key = key,
	    .extent = vgpu_place_current(&place) == CUDA_SUCCESS ? place.context : 0};
}

#define MAPPING(symbol, handle)                                                                    \
	CUresult symbol(handle *view, CUexternalMemory memory, const void *described)              \
	{                                                                                          \
		uint32_t claim;                                                                    \
		CUresult result;                                                                   \
                                                                                                   \
		if (!vgpu_claim_known(VGPU_CLAIM_EXTERNAL, (uintptr_t)memory, &claim))             \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = real_##symbol(view, memory, described);                                   \
		vgpu_claim_end(claim, result,                                                      \
			       as_view(result == CUDA_SUCCESS ? (uintptr_t)*view : 0));            \
		return result;                                                                     \
	}

MAPPING(cuExternalMemoryGetMappedBuffer, CUdeviceptr)
MAPPING(cuExternalMemoryGetMappedMipmappedArray, CUmipmappedArray)
