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
#include "import_size.h"
#include "step.h"

enum { OPAQUE_FD = 1 }; /* CU_EXTERNAL_MEMORY_HANDLE_TYPE_ */

/* Where it lies, and what it holds there. */
static bool measure(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described, struct vgpu_place *place,
		    uint64_t *bytes)
{
	return described->type == OPAQUE_FD &&
	       vgpu_descriptor_bytes((int)described->handle[0], place, bytes);
}

/* What is malformed the driver says, if it is. An import that succeeds takes the descriptor, so a
 * copy is tried. */
static CUresult refuse(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC tried = *described;
	CUexternalMemory given;
	CUresult result;
	int copy = -1;

	if (described->type == OPAQUE_FD) {
		copy = (int)syscall(SYS_fcntl, (int)described->handle[0], F_DUPFD_CLOEXEC, 0);
		tried.handle[0] = (uint32_t)copy;
	}
	result = real_cuImportExternalMemory(&given, &tried);
	if (result == CUDA_SUCCESS) {
		(void)real_cuDestroyExternalMemory(given);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (copy >= 0)
		syscall(SYS_close, copy);
	return result;
}

/*
 * The size that the program gives proves nothing: a driver may take a smaller one, and holds all
 * the same. A larger one is the driver's to refuse; if it does not, that counts.
 */
CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *described)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXTERNAL};
	struct vgpu_reservation reservation;
	struct vgpu_place place;
	uint64_t held_bytes, bytes;
	uint32_t claim;
	CUresult result;

	if (!memory || !described)
		return real_cuImportExternalMemory(memory, described);
	result = vgpu_place_current(&place);
	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuImportExternalMemory(memory, described)
					      : result;
	to.extent = place.context;
	if (!measure(described, &place, &held_bytes))
		return refuse(described);
	bytes = held_bytes < described->size_bytes ? described->size_bytes : held_bytes;
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.card, bytes), &reservation);
	if (result != CUDA_SUCCESS)
		return described->size_bytes && bytes == held_bytes ? result : refuse(described);
	claim = vgpu_claim_new(&reservation, 0);
	if (!claim) {
		vgpu_cancel(&reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	VGPU_CALL_RESERVED(result, &reservation, real_cuImportExternalMemory(memory, described));
	VGPU_AT(EXTERNAL_CALLED);
	to.key = result == CUDA_SUCCESS ? (uintptr_t)*memory : 0;
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
