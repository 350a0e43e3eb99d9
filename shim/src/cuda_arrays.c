/*
 * Wrappers of arrays.
 *
 * An array is charged what the driver says an array of that description needs. It says so of arrays
 * whose mapping is deferred, which have no memory themselves: so one of those is made, asked and
 * destroyed first. Where a driver has no such arrays, or not of that shape, the size is computed.
 * Each array is charged whole blocks of its own; a driver that lets small ones share a block takes
 * less. Sparse and deferred arrays cost nothing: what is mapped to them is held by claims.
 */
#include "array_bytes.h"
#include "array_extents.h"
#include "claims.h"
#include "hooks.h"

static CUDA_ARRAY3D_DESCRIPTOR deferred(const CUDA_ARRAY3D_DESCRIPTOR *array)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = *array;

	twin.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	return twin;
}

static uint64_t told_of_array(const CUDA_ARRAY3D_DESCRIPTOR *array, CUdevice device)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = deferred(array);
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	CUarray made;
	CUresult result;

	if (real_cuArray3DCreate_v2(&made, &twin) != CUDA_SUCCESS)
		return 0;
	result = real_cuArrayGetMemoryRequirements(&needs, made, device);
	(void)real_cuArrayDestroy(made);
	return result == CUDA_SUCCESS ? needs.size_bytes : 0;
}

static uint64_t told_of_mipmap(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels,
			       CUdevice device)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = deferred(array);
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	CUmipmappedArray made;
	CUresult result;

	if (real_cuMipmappedArrayCreate(&made, &twin, levels) != CUDA_SUCCESS)
		return 0;
	result = real_cuMipmappedArrayGetMemoryRequirements(&needs, made, device);
	(void)real_cuMipmappedArrayDestroy(made);
	return result == CUDA_SUCCESS ? needs.size_bytes : 0;
}

/* Levels of 0: an array that is none of a mipmap. */
static CUresult reserve(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels,
			struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	CUdevice device = 0;
	uint64_t bytes = 0;
	bool told;
	CUresult result = vgpu_place_current(&place);

	if (result != CUDA_SUCCESS)
		return result;
	if (array->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		place.card = VGPU_CARD_UNMANAGED;
	if (place.card >= 0 && real_cuCtxGetDevice(&device) == CUDA_SUCCESS)
		bytes =
		    levels ? told_of_mipmap(array, levels, device) : told_of_array(array, device);
	told = bytes;
	if (!told)
		bytes = vgpu_array_bytes(array, levels ? levels : 1);
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.card, bytes), reservation);
	return told || vgpu_array_is_possible(array, device)
		   ? result
		   : vgpu_ask_all_the_same(reservation, result);
}

static CUresult destroy_array(uint64_t array)
{
	return real_cuArrayDestroy((CUarray)(uintptr_t)array);
}

static CUresult destroy_mipmap(uint64_t mipmap)
{
	return real_cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)mipmap);
}

/* Nothing is reserved for what should have been refused. */
static CUresult commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind,
		       uint64_t key)
{
	if (reservation->place.card >= 0 && !reservation->bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return vgpu_commit(reservation, kind, key);
}

/* What became of a reservation, once the driver has answered; `out` is the program's. */
static CUresult keep(const struct vgpu_reservation *reservation, CUresult result,
		     enum vgpu_kind kind, void *made, void **out, CUresult (*undo)(uint64_t key))
{
	uint64_t key = (uintptr_t)made;

	if (result == CUDA_SUCCESS) {
		result = commit(reservation, kind, key);
		if (result == CUDA_SUCCESS)
			*out = made;
		if (result == CUDA_SUCCESS || undo(key) != CUDA_SUCCESS)
			return result;
	}
	vgpu_cancel(reservation);
	return result;
}

/* A mipmap may lie in memory of another interface, and has no charge of its own then. */
static CUresult end(enum vgpu_kind kind, uint64_t key, CUresult (*destroy)(uint64_t key))
{
	struct vgpu_charge charge;
	uint32_t tiles = vgpu_take_tiles_of_array(key), view = vgpu_take_view(key);
	CUresult result;

	vgpu_take(kind, key, &charge);
	result = destroy(key);
	vgpu_release(kind, key, &charge, result);
	vgpu_settle_claims(tiles, result);
	vgpu_settle_claims(view, result);
	return result;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *described)
{
	CUDA_ARRAY3D_DESCRIPTOR whole;
	struct vgpu_reservation reservation;
	CUarray made = NULL;
	CUresult result;

	if (!array || !described)
		return real_cuArrayCreate(array, described);
	whole = (CUDA_ARRAY3D_DESCRIPTOR){described->width,  described->height,	  0,
					  described->format, described->channels, 0};
	result = reserve(&whole, 0, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuArrayCreate(&made, described));
	return keep(&reservation, result, VGPU_KIND_ARRAY, made, (void **)array, destroy_array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *described)
{
	CUDA_ARRAY3D_DESCRIPTOR whole;
	struct vgpu_reservation reservation;
	CUarray made = NULL;
	CUresult result;

	if (!array || !described)
		return real_cuArrayCreate_v2(array, described);
	whole = (CUDA_ARRAY3D_DESCRIPTOR){described->width,  described->height,	  0,
					  described->format, described->channels, 0};
	result = reserve(&whole, 0, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuArrayCreate_v2(&made, described));
	return keep(&reservation, result, VGPU_KIND_ARRAY, made, (void **)array, destroy_array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *described)
{
	CUDA_ARRAY3D_DESCRIPTOR whole;
	struct vgpu_reservation reservation;
	CUarray made = NULL;
	CUresult result;

	if (!array || !described)
		return real_cuArray3DCreate(array, described);
	whole = (CUDA_ARRAY3D_DESCRIPTOR){described->width,  described->height,	  described->depth,
					  described->format, described->channels, described->flags};
	result = reserve(&whole, 0, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuArray3DCreate(&made, described));
	return keep(&reservation, result, VGPU_KIND_ARRAY, made, (void **)array, destroy_array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *described)
{
	struct vgpu_reservation reservation;
	CUarray made = NULL;
	CUresult result;

	if (!array || !described)
		return real_cuArray3DCreate_v2(array, described);
	result = reserve(described, 0, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuArray3DCreate_v2(&made, described));
	return keep(&reservation, result, VGPU_KIND_ARRAY, made, (void **)array, destroy_array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *described,
				unsigned int levels)
{
	struct vgpu_reservation reservation;
	CUmipmappedArray made = NULL;
	CUresult result;

	if (!mipmap || !described || !levels)
		return real_cuMipmappedArrayCreate(mipmap, described, levels);
	result = reserve(described, levels, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation,
			   real_cuMipmappedArrayCreate(&made, described, levels));
	return keep(&reservation, result, VGPU_KIND_MIPMAP, made, (void **)mipmap, destroy_mipmap);
}

CUresult cuArrayDestroy(CUarray array)
{
	return end(VGPU_KIND_ARRAY, (uintptr_t)array, destroy_array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	return end(VGPU_KIND_MIPMAP, (uintptr_t)mipmap, destroy_mipmap);
}
