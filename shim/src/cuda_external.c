/*
 * Wrappers of memory imported from other interfaces. It is charged whole, whoever exported it and
 * is charged for it too, until the import has been destroyed and everything mapped of it been
 * freed: the import and each of these views is a claim. cuMemFree and cuMipmappedArrayDestroy,
 * which end views, take their claims.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "claims.h"
#include "hooks.h"

enum { OPAQUE_FD = 1, LAST_TYPE = 8 }; /* CU_EXTERNAL_MEMORY_HANDLE_TYPE_ */

/* An import that succeeds takes the descriptor, so nothing that could is tried. */
static bool is_malformed(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described)
{
	return described->type < OPAQUE_FD || described->type > LAST_TYPE ||
	       !described->size_bytes ||
	       (described->type == OPAQUE_FD &&
		syscall(SYS_fcntl, (int)described->handle[0], F_GETFD) < 0);
}

/* What is malformed besides, the driver says. */
static CUresult refuse(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described, CUresult ours)
{
	CUexternalMemory given;
	CUresult result = ours;

	if (ours == CUDA_ERROR_OUT_OF_MEMORY && is_malformed(described))
		result = real_cuImportExternalMemory(&given, described);
	if (result != CUDA_SUCCESS)
		return result;
	(void)real_cuDestroyExternalMemory(given);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXTERNAL};
	struct vgpu_reservation reservation;
	struct vgpu_place place;
	uint32_t claim;
	CUresult result;

	if (!memory || !described)
		return real_cuImportExternalMemory(memory, described);
	result = vgpu_place_current(&place);
	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuImportExternalMemory(memory, described)
					      : result;
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.card, described->size_bytes),
				 &reservation);
	if (result != CUDA_SUCCESS)
		return refuse(described, result);
	claim = vgpu_claim_new(&reservation, 0);
	if (!claim) {
		vgpu_cancel(&reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	VGPU_CALL_RESERVED(result, &reservation, real_cuImportExternalMemory(memory, described));
	to.key = result == CUDA_SUCCESS ? (uintptr_t)*memory : 0;
	to.extent = place.context;
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint32_t claim = vgpu_take_external((uintptr_t)memory);
	CUresult result = real_cuDestroyExternalMemory(memory);

	vgpu_settle_claims(claim, result);
	return result;
}

/* The context that a view goes with. */
static struct vgpu_claim_to as_view(uint64_t key)
{
	struct vgpu_place place;

	return (struct vgpu_claim_to){
	    .kind = VGPU_CLAIM_VIEW,
	    .key = key,
	    .extent = vgpu_place_current(&place) == CUDA_SUCCESS ? place.context : 0};
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
					 const void *described)
{
	uint32_t claim;
	CUresult result;

	if (!vgpu_claim_external((uintptr_t)memory, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuExternalMemoryGetMappedBuffer(address, memory, described);
	vgpu_claim_end(claim, result, as_view(result == CUDA_SUCCESS ? *address : 0));
	return result;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory memory,
						 const void *described)
{
	uint32_t claim;
	CUresult result;

	if (!vgpu_claim_external((uintptr_t)memory, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuExternalMemoryGetMappedMipmappedArray(mipmap, memory, described);
	vgpu_claim_end(claim, result, as_view(result == CUDA_SUCCESS ? (uintptr_t)*mipmap : 0));
	return result;
}
