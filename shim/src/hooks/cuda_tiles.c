/*
 * Wrapper of the call that maps physical memory to parts of sparse and deferred arrays. The memory
 * is charged until the part is mapped again or unmapped, or the array ends. A part is identified by
 * its exact description. If a program unmaps a part by another description, the memory stays
 * charged until the array ends.
 */
#include "charge/claims.h"
#include "charge/export_key.h"
#include "charge/place.h"
#include "loader/hooks.h"

enum { SUBRESOURCE_MIPTAIL = 1 };

/* The key of a part: a hash of its description. In a miptail's description padding follows the
 * layer, and must not change the key. */
static uint64_t key_of(const CUarrayMapInfo *info)
{
	bool tail = info->subresource_type == SUBRESOURCE_MIPTAIL;
	const uint64_t *part = info->subresource;
	const uint64_t words[] = {info->resource,
				  (uint64_t)info->subresource_type,
				  tail ? (uint32_t)part[0] : part[0],
				  part[1],
				  part[2],
				  tail ? 0 : part[3]};

	return vgpu_export_key_of(words, sizeof(words), false);
}

/* Map or unmap one part per driver call, so that each part has its own claim. */
static CUresult map_part(enum vgpu_function real, CUarrayMapInfo *info, CUstream stream,
			 uint32_t context)
{
	bool maps = info->operation == CU_MEM_OPERATION_TYPE_MAP;
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_TILE,
				   .key = key_of(info),
				   .extent = context,
				   .owner = info->resource};
	uint32_t claim = 0, old = 0;
	CUresult result;

	if (maps && !vgpu_claim_handle(info->memory, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!maps)
		old = vgpu_take_claim(VGPU_CLAIM_TILE, to.key);
	result = as_cuMemMapArrayAsync(real, info, 1, stream);
	vgpu_claim_end(claim, result, to);
	vgpu_settle_claims(old, result);
	return result;
}

CUresult on_cuMemMapArrayAsync(enum vgpu_function real, CUarrayMapInfo *list, unsigned int count,
			       CUstream stream)
{
	struct vgpu_place place;
	CUresult result = vgpu_place_current(&place);

	if (result != CUDA_SUCCESS || !list || !count || place.gpu < 0)
		return as_cuMemMapArrayAsync(real, list, count, stream);
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
		result = map_part(real, &list[i], stream, place.context);
	return result;
}
