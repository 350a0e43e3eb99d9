/* Wrappers of stream-ordered memory. A pool's memory is charged by the pool's meter (meters.h).
 * cuMemFreeAsync returns memory to the pool, and so changes no charge. It may also free memory of
 * cuMemAlloc, which is refunded. */
#include "charge/device_memory.h"
#include "charge/export_key.h"
#include "charge/meters.h"
#include "charge/place.h"
#include "charge/refund.h"
#include "loader/hooks.h"
#include "region/shared.h"
#include "vgpu/region.h"

enum { PINNED = 1, FIRST_REAL_STREAM = 3 };

/* Stream 0 and the two named default streams belong to the current context. */
static CUresult place_of_stream(CUstream stream, struct vgpu_place *place)
{
	CUcontext context;

	if ((uintptr_t)stream >= FIRST_REAL_STREAM &&
	    real_cuStreamGetCtx(stream, &context) == CUDA_SUCCESS)
		return vgpu_place_of_context(context, place);
	return vgpu_place_current(place);
}

/* One allocation: from `pool` if `named` is set, otherwise from the GPU's current pool. */
struct request {
	enum vgpu_function twin;
	CUdeviceptr *address;
	size_t size_bytes;
	CUmemoryPool pool;
	CUstream stream, own; /* own: vgpu_own_stream */
	bool named;
};

static CUresult take(const struct request *request, CUdeviceptr *address)
{
	return request->named
		   ? as_cuMemAllocFromPoolAsync(request->twin, address, request->size_bytes,
						request->pool, request->stream)
		   : as_cuMemAllocAsync(request->twin, address, request->size_bytes,
					request->stream);
}

/* Free without a stream, because no work has used the memory yet. */
static CUresult undo(struct vgpu_meter *meter, CUdeviceptr given)
{
	if (real_cuMemFree_v2(given) == CUDA_SUCCESS)
		(void)vgpu_meter_trim(meter);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Allocate, and write the program's pointer only if the memory fits. */
static CUresult allocate(struct vgpu_meter *meter, const struct request *request)
{
	struct vgpu_growth growth;
	CUdeviceptr given = 0;
	CUresult result;

	if (!meter)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = vgpu_growth_begin(meter, request->size_bytes, request->own, &growth);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &growth.reservation, take(request, &given));
	if (!vgpu_growth_end(&growth) && result == CUDA_SUCCESS)
		return undo(meter, given);
	if (result == CUDA_SUCCESS)
		*request->address = given;
	return result;
}

/* If another thread changes the current pool during the call, the memory may be from either
 * pool. */
static CUresult allocate_from_current(int gpu, const struct request *request)
{
	struct vgpu_meter *meter = vgpu_meter_current(gpu), *now;
	CUresult result = allocate(meter, request);

	now = vgpu_meter_current(gpu);
	if (now != meter && !vgpu_meters_moved(gpu) && result == CUDA_SUCCESS)
		return undo(now, *request->address);
	return result;
}

CUresult on_cuMemAllocAsync(enum vgpu_function real, CUdeviceptr *dptr, size_t size_bytes,
			    CUstream stream)
{
	const struct request request = {
	    .twin = real,
	    .address = dptr,
	    .size_bytes = size_bytes,
	    .stream = stream,
	    .own = vgpu_own_stream(stream, real == VGPU_ID_cuMemAllocAsync_ptsz)};
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUresult result = CUDA_SUCCESS;

	if (dptr && size_bytes && !vgpu_place_only(&place))
		result = place_of_stream(stream, &place);
	if (result != CUDA_SUCCESS)
		return result;
	return place.gpu == VGPU_GPU_UNMANAGED ? take(&request, dptr)
					       : allocate_from_current(place.gpu, &request);
}

/* The place of a pool without a meter. If it is no device's default pool, the stream determines
 * it. */
static CUresult place_of_pool(CUmemoryPool pool, CUstream stream, struct vgpu_place *place)
{
	CUmemoryPool other;

	for (CUdevice device = 0; real_cuDeviceGetDefaultMemPool(&other, device) == CUDA_SUCCESS;
	     device++)
		if (other == pool)
			return vgpu_place_of_device(device, place);
	return place_of_stream(stream, place);
}

CUresult on_cuMemAllocFromPoolAsync(enum vgpu_function real, CUdeviceptr *dptr, size_t size_bytes,
				    CUmemoryPool pool, CUstream stream)
{
	const struct request request = {
	    .twin = real,
	    .address = dptr,
	    .size_bytes = size_bytes,
	    .pool = pool,
	    .stream = stream,
	    .own = vgpu_own_stream(stream, real == VGPU_ID_cuMemAllocFromPoolAsync_ptsz),
	    .named = true};
	struct vgpu_meter *meter = vgpu_meter_find(pool);
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUresult result = CUDA_SUCCESS;

	if (!dptr || !size_bytes || !pool)
		return take(&request, dptr);
	if (!meter && vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (!meter)
		result = place_of_pool(pool, stream, &place);
	if (result != CUDA_SUCCESS)
		return result;
	if (!meter)
		meter = vgpu_meter_add(pool, place.gpu);
	return meter || place.gpu != VGPU_GPU_UNMANAGED ? allocate(meter, &request)
							: take(&request, dptr);
}

CUresult on_cuMemFreeAsync(enum vgpu_function real, CUdeviceptr dptr, CUstream stream)
{
	struct vgpu_charge charge;
	CUresult result;

	vgpu_refund_begin(VGPU_KIND_MEMORY, dptr, &charge);
	result = as_cuMemFreeAsync(real, dptr, stream);
	vgpu_meters_changed();
	vgpu_refund_end(VGPU_KIND_MEMORY, dptr, &charge, result);
	return result;
}

/* Add a meter for a new pool, and return the pool in `*out`. If the table is full, destroy the
 * pool. */
static CUresult enter(CUmemoryPool pool, int gpu, CUmemoryPool *out)
{
	if (!vgpu_meter_add(pool, gpu)) {
		real_cuMemPoolDestroy(pool);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = pool;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	CUmemoryPool given = NULL;
	struct vgpu_place place;
	CUresult result = real_cuMemPoolCreate(pool ? &given : NULL, properties);

	if (result != CUDA_SUCCESS)
		return result;
	result = vgpu_place_of_pool(properties, &place);
	if (result == CUDA_SUCCESS)
		return enter(given, place.gpu, pool);
	real_cuMemPoolDestroy(given);
	return result;
}

/* An imported pool itself is not charged. cuMemPoolImportPointer imports the exporter's allocations
 * one by one. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type,
					    unsigned long long flags)
{
	CUmemoryPool given = NULL;
	CUresult result =
	    real_cuMemPoolImportFromShareableHandle(pool ? &given : NULL, handle, type, flags);

	return result == CUDA_SUCCESS ? enter(given, VGPU_GPU_UNMANAGED, pool) : result;
}

/* Charge an imported allocation like other memory. It is charged twice, because the exporter's pool
 * includes it too. */
static CUresult charge_import(CUdeviceptr dptr)
{
	struct vgpu_reservation needs;
	struct vgpu_place place;
	size_t size_bytes;
	CUresult result = vgpu_place_of_address(dptr, &place);

	if (result == CUDA_SUCCESS)
		result = real_cuMemGetAddressRange_v2(NULL, &size_bytes, dptr);
	if (result == CUDA_SUCCESS)
		result = vgpu_reserve_at(place, vgpu_whole_blocks(place.gpu, size_bytes), &needs);
	if (result != CUDA_SUCCESS)
		return result;
	result = vgpu_commit(&needs, VGPU_KIND_MEMORY, dptr, 0);
	if (result != CUDA_SUCCESS)
		vgpu_cancel(&needs);
	return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool, void *data)
{
	CUdeviceptr given = 0;
	CUresult result = real_cuMemPoolImportPointer(dptr ? &given : NULL, pool, data);

	if (result != CUDA_SUCCESS)
		return result;
	result = charge_import(given);
	if (result == CUDA_SUCCESS)
		*dptr = given;
	else
		(void)real_cuMemFree_v2(given);
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct vgpu_meter *meter = vgpu_meter_find(pool);

	if (meter)
		return vgpu_meter_destroy(meter, pool);
	return vgpu_meter_outlives(pool) ? CUDA_ERROR_INVALID_VALUE : real_cuMemPoolDestroy(pool);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUresult result;

	if (vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	result = real_cuDeviceSetMemPool(device, pool);
	if (result == CUDA_SUCCESS && vgpu_place_of_device(device, &place) == CUDA_SUCCESS)
		vgpu_meter_current_changed(place.gpu);
	return result;
}

/* Add a meter for a pool that the driver made. The queried location determines the pool's GPU. */
static void first_use(CUmemoryPool pool, const CUmemLocation *location, int type)
{
	const CUmemPoolProps properties = {.allocation_type = type, .location = *location};
	struct vgpu_place place;

	if (!vgpu_meter_find(pool) && !vgpu_meter_outlives(pool) &&
	    vgpu_place_of_pool(&properties, &place) == CUDA_SUCCESS)
		(void)vgpu_meter_add(pool, place.gpu);
}

#define RETURNING_POOL(symbol)                                                                     \
	CUresult symbol(CUmemoryPool *pool, CUmemLocation *location, int type)                     \
	{                                                                                          \
		CUresult result = real_##symbol(pool, location, type);                             \
                                                                                                   \
		if (result == CUDA_SUCCESS)                                                        \
			first_use(*pool, location, type);                                          \
		return result;                                                                     \
	}

RETURNING_POOL(cuMemGetDefaultMemPool)
RETURNING_POOL(cuMemGetMemPool)

/* cuMemAllocAsync does not use a device's current pool for managed memory. */
CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUresult result;

	if (vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	result = real_cuMemSetMemPool(location, type, pool);
	if (result == CUDA_SUCCESS && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    type == PINNED && vgpu_place_of_device(location->id, &place) == CUDA_SUCCESS)
		vgpu_meter_current_changed(place.gpu);
	return result;
}
