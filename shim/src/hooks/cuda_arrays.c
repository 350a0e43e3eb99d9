/*
 * Wrappers of arrays.
 *
 * An array is charged the size that the driver reports for its description. The driver reports a
 * size only for arrays with deferred mapping, which have no memory themselves. So the library first
 * creates such an array of the same description, queries its size, and destroys it. If the driver
 * cannot create it (before CUDA 11.6, or for some shapes), the size of the elements is charged. An
 * array is charged whole blocks, although a driver may let small arrays share a block. Sparse and
 * deferred arrays cost nothing. The memory that a program maps to them is charged by itself
 * (cuda_tiles.c).
 */
#include "charge/claims.h"
#include "charge/device_memory.h"
#include "charge/place.h"
#include "charge/refund.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

enum { MAX_ELEMENT_BYTES = 16 };

/* The size that the driver reports, or 0 if it reports none. `levels` is 0 for a single array. */
static uint64_t reported_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels,
			       CUdevice device)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = *array;
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	CUmipmappedArray mipmap;
	CUarray single;
	CUresult result;

	twin.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (!levels && real_cuArray3DCreate_v2(&single, &twin) == CUDA_SUCCESS) {
		result = real_cuArrayGetMemoryRequirements(&needs, single, device);
		(void)real_cuArrayDestroy(single);
	} else if (levels && real_cuMipmappedArrayCreate(&mipmap, &twin, levels) == CUDA_SUCCESS) {
		result = real_cuMipmappedArrayGetMemoryRequirements(&needs, mipmap, device);
		(void)real_cuMipmappedArrayDestroy(mipmap);
	} else {
		return 0;
	}
	return result == CUDA_SUCCESS ? needs.size_bytes : 0;
}

static uint64_t channel_bytes(int format)
{
	switch (format) { /* CU_AD_FORMAT_ */
	case 0x01:
	case 0x08:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2;
	case 0x03:
	case 0x0a:
	case 0x20:
		return 4;
	default:
		return MAX_ELEMENT_BYTES;
	}
}

static uint64_t times(uint64_t bytes, uint64_t count)
{
	uint64_t product;

	return __builtin_mul_overflow(bytes, count ? count : 1, &product) ? UINT64_MAX : product;
}

/* Each level of a mipmap is at most half as large as the level before. So all levels together are
 * smaller than twice the first. */
static uint64_t bytes_of_elements(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels)
{
	uint64_t bytes = times(channel_bytes(array->format), array->channels);

	bytes = times(times(times(bytes, array->width), array->height), array->depth);
	return times(bytes, levels > 1 ? 2 : 1);
}

static CUresult reserve(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels,
			struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	CUdevice device = 0;
	uint64_t bytes = 0;
	CUresult result = vgpu_place_current(&place);

	if (result != CUDA_SUCCESS)
		return result;
	if (array->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		place.gpu = VGPU_GPU_UNMANAGED;
	if (place.gpu >= 0 && real_cuCtxGetDevice(&device) == CUDA_SUCCESS)
		bytes = reported_bytes(array, levels, device);
	if (bytes)
		return vgpu_reserve_at(place, vgpu_whole_blocks(place.gpu, bytes), reservation);
	bytes = bytes_of_elements(array, levels);
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.gpu, bytes), reservation);
	return vgpu_defer_to_driver(reservation, result);
}

static CUresult destroy_array(uint64_t array)
{
	return real_cuArrayDestroy((CUarray)(uintptr_t)array);
}

static CUresult destroy_mipmap(uint64_t mipmap)
{
	return real_cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)mipmap);
}

/* Charge the array `made`, and return it in `*out`. If nothing was reserved for it, because the
 * driver should have refused it (vgpu_defer_to_driver), destroy it. */
static CUresult keep(const struct vgpu_reservation *reservation, CUresult result,
		     enum vgpu_kind kind, void *made, void **out, CUresult (*undo)(uint64_t key))
{
	uint64_t key = (uintptr_t)made;

	if (result == CUDA_SUCCESS) {
		result = reservation->place.gpu >= 0 && !reservation->bytes
			     ? CUDA_ERROR_OUT_OF_MEMORY
			     : vgpu_commit(reservation, kind, key, 0);
		if (result == CUDA_SUCCESS)
			*out = made;
		if (result == CUDA_SUCCESS || undo(key) != CUDA_SUCCESS)
			return result;
	}
	vgpu_cancel(reservation);
	return result;
}

/* Destroy an array or a mipmap. If a mipmap is a view of imported memory, the view's claim has the
 * charge. */
static CUresult end(enum vgpu_kind kind, uint64_t key, CUresult (*destroy)(uint64_t key))
{
	struct vgpu_charge charge;
	uint32_t tiles = vgpu_take_tiles_of_array(key), view = vgpu_take_view(key);
	CUresult result;

	vgpu_refund_begin(kind, key, &charge);
	result = destroy(key);
	vgpu_refund_end(kind, key, &charge, result);
	vgpu_settle_claims(tiles, result);
	vgpu_settle_claims(view, result);
	return result;
}

/* Define a wrapper. depth_ and flags_ are 0 for the two-dimensional description, which lacks them.
 * `args` names `into`, where the driver writes the array. */
#define CREATING(symbol, type, kind, destroy, params, args, depth_, flags_, levels_)               \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_reservation reservation;                                               \
		type made = NULL, *into = out;                                                     \
		CUresult result;                                                                   \
                                                                                                   \
		if (!out || !described || (kind == VGPU_KIND_MIPMAP && !(levels_)))                \
			return real_##symbol args;                                                 \
		result = reserve(&(CUDA_ARRAY3D_DESCRIPTOR){described->width, described->height,   \
							    depth_, described->format,             \
							    described->channels, flags_},          \
				 levels_, &reservation);                                           \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		into = &made;                                                                      \
		VGPU_CALL_RESERVED(result, &reservation, real_##symbol args);                      \
		return keep(&reservation, result, kind, made, (void **)out, destroy);              \
	}

CREATING(cuArrayCreate_v2, CUarray, VGPU_KIND_ARRAY, destroy_array,
	 (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *described), (into, described), 0, 0, 0)
CREATING(cuArray3DCreate_v2, CUarray, VGPU_KIND_ARRAY, destroy_array,
	 (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *described), (into, described),
	 described->depth, described->flags, 0)
CREATING(cuMipmappedArrayCreate, CUmipmappedArray, VGPU_KIND_MIPMAP, destroy_mipmap,
	 (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *described, unsigned int levels),
	 (into, described, levels), described->depth, described->flags, levels)

CUresult cuArrayDestroy(CUarray array)
{
	return end(VGPU_KIND_ARRAY, (uintptr_t)array, destroy_array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	return end(VGPU_KIND_MIPMAP, (uintptr_t)mipmap, destroy_mipmap);
}
