/*
 * Wrapper of the call that maps physical memory to parts of sparse and deferred arrays. The memory
 * is charged until the part is mapped again or unmapped, or the array ends. A part is identified by
 * its exact description. If a program unmaps a part by another description, the memory stays
 * charged until the array ends.
 */
#include "charge/claims.h"
#include "charge/place.h"
#include "loader/hooks.h"

enum { SUBRESOURCE_MIPTAIL = 1 };

static uint64_t mixed(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

/* The key of a part: a hash of its description. In a miptail's description padding follows the
 * layer, and must not change the key. */
static uint64_t key_of(const CUarrayMapInfo *info)
{
	bool tail = info->subresource_type == SUBRESOURCE_MIPTAIL;
	uint64_t first = info->subresource[0];
	uint64_t hash = mixed(info->resource, (uint64_t)info->subresource_type);

	hash = mixed(hash, tail ? first & UINT32_MAX : first);
	for (int i = 1; i < (tail ? 3 : 4); i++)
		hash = mixed(hash, info->subresource[i]);
	return hash;
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
