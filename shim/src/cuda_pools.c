/*
 * Wrappers of stream-ordered memory. What a pool takes is its meter's to know; cuMemFreeAsync
 * changes nothing of that, but may free other memory as well: that is stream_frees.h's.
 */
#include "hooks.h"
#include "location.h"
#include "meter.h"
#include "stream_frees.h"

enum { PINNED = 1, FIRST_REAL_STREAM = 3, POINTER_DEVICE_ORDINAL = 9 };

uint32_t vgpu_pool_imports;

static const CUstream PER_THREAD = (CUstream)2;

/* Stream 0 and the two named default streams are the current context's. */
static CUresult place_of_stream(CUstream stream, struct vgpu_place *place)
{
	CUcontext context;

	if ((uintptr_t)stream >= FIRST_REAL_STREAM &&
	    real_cuStreamGetCtx(stream, &context) == CUDA_SUCCESS)
		return vgpu_place_of_context(context, place);
	return vgpu_place_current(place);
}

static CUresult take_current(const struct vgpu_metered_call *call)
{
	return as_cuMemAllocAsync(call->twin, call->address, call->size_bytes, call->stream);
}

static CUresult take_named(const struct vgpu_metered_call *call)
{
	return as_cuMemAllocFromPoolAsync(call->twin, call->address, call->size_bytes, call->pool,
					  call->stream);
}

/* Nothing has used it yet, so nothing need be waited for. */
static CUresult give_up(const struct vgpu_metered_call *call)
{
	return real_cuMemFree_v2(*call->address);
}

/* The program's pointer changes where memory is given, and only there. */
static CUresult allocate(struct vgpu_meter *meter, struct vgpu_metered_call call)
{
	CUdeviceptr *out = call.address, given;
	CUresult result;

	call.address = &given;
	if (!meter)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = vgpu_meter_call(meter, vgpu_whole_blocks(vgpu_meter_card(meter), call.size_bytes),
				 &call);
	if (result == CUDA_SUCCESS)
		*out = given;
	return result;
}

/* Another thread may make another pool current, over and over. */
static CUresult allocate_from_current(int card, struct vgpu_metered_call call)
{
	bool moved;
	CUresult result;

	call.moved = &moved;
	do {
		moved = false;
		result = allocate(vgpu_meter_current(card), call);
	} while (moved);
	return result;
}

CUresult on_cuMemAllocAsync(enum vgpu_function real, CUdeviceptr *dptr, size_t size_bytes,
			    CUstream stream)
{
	bool own = real == VGPU_ID_cuMemAllocAsync_ptsz && !stream;
	struct vgpu_metered_call call = {.take = take_current,
					 .undo = give_up,
					 .twin = real,
					 .address = dptr,
					 .size_bytes = size_bytes,
					 .stream = stream,
					 .capturing = own ? PER_THREAD : stream};
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	CUresult result = CUDA_SUCCESS;

	if (dptr && size_bytes)
		result = place_of_stream(stream, &place);
	if (result != CUDA_SUCCESS)
		return result;
	return place.card == VGPU_CARD_UNMANAGED ? take_current(&call)
						 : allocate_from_current(place.card, call);
}

/* One that is not known is the default pool of some device; failing that, the stream tells. */
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
	bool own = real == VGPU_ID_cuMemAllocFromPoolAsync_ptsz && !stream;
	struct vgpu_metered_call call = {.take = take_named,
					 .undo = give_up,
					 .twin = real,
					 .address = dptr,
					 .size_bytes = size_bytes,
					 .pool = pool,
					 .stream = stream,
					 .capturing = own ? PER_THREAD : stream};
	struct vgpu_meter *meter = vgpu_meter_find(pool);
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	CUresult result = CUDA_SUCCESS;

	if (!dptr || !size_bytes || !pool)
		return take_named(&call);
	if (!meter && vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (!meter)
		result = place_of_pool(pool, stream, &place);
	if (result != CUDA_SUCCESS)
		return result;
	if (!meter)
		meter = vgpu_meter_add(pool, place.card);
	return meter || place.card != VGPU_CARD_UNMANAGED ? allocate(meter, call)
							  : take_named(&call);
}

CUresult on_cuMemFreeAsync(enum vgpu_function real, CUdeviceptr dptr, CUstream stream)
{
	bool own = real == VGPU_ID_cuMemFreeAsync_ptsz && !stream;
	struct vgpu_charge charge, imported;
	CUresult result;

	vgpu_take(VGPU_KIND_MEMORY, dptr, &charge);
	vgpu_take_import(dptr, &imported);
	result = as_cuMemFreeAsync(real, dptr, stream);
	if (result == CUDA_SUCCESS) {
		vgpu_freed_in_stream(VGPU_KIND_MEMORY, dptr, &charge, own ? PER_THREAD : stream);
		vgpu_freed_in_stream(VGPU_KIND_IMPORT, dptr, &imported, own ? PER_THREAD : stream);
	} else {
		vgpu_release(VGPU_KIND_MEMORY, dptr, &charge, result);
		vgpu_release(VGPU_KIND_IMPORT, dptr, &imported, result);
	}
	return result;
}

/* From the driver's answer on the pool is known; one that cannot be written down is not given. */
static CUresult enter(CUmemoryPool pool, int card, CUmemoryPool *out)
{
	if (!vgpu_meter_add(pool, card)) {
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
		return enter(given, place.card, pool);
	real_cuMemPoolDestroy(given);
	return result;
}

/* Nothing can be allocated from it; what is imported of it, see cuMemPoolImportPointer. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type,
					    unsigned long long flags)
{
	CUmemoryPool given = NULL;
	CUresult result =
	    real_cuMemPoolImportFromShareableHandle(pool ? &given : NULL, handle, type, flags);

	return result == CUDA_SUCCESS ? enter(given, VGPU_CARD_UNMANAGED, pool) : result;
}

/* Which card, and what the allocation comes to. */
static CUresult reserve_import(CUdeviceptr dptr, struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	size_t size_bytes = 0;
	int ordinal = 0;
	CUresult result = real_cuPointerGetAttribute(&ordinal, POINTER_DEVICE_ORDINAL, dptr);

	if (result == CUDA_SUCCESS)
		result = vgpu_place_of_device(ordinal, &place);
	if (result == CUDA_SUCCESS)
		result = real_cuMemGetAddressRange_v2(NULL, &size_bytes, dptr);
	if (result != CUDA_SUCCESS)
		return result;
	return vgpu_reserve_at(place, vgpu_whole_blocks(place.card, size_bytes), reservation);
}

/*
 * It takes no memory, but keeps what the exporter may let go of, and nobody tells when that is. So
 * it is charged here as well, in full: twice, while the exporter has it.
 */
CUresult cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool, void *data)
{
	struct vgpu_reservation reservation = {.place = {.card = VGPU_CARD_UNMANAGED}};
	CUdeviceptr given = 0;
	CUresult result = real_cuMemPoolImportPointer(dptr ? &given : NULL, pool, data);

	if (result != CUDA_SUCCESS)
		return result;
	result = reserve_import(given, &reservation);
	if (result == CUDA_SUCCESS) {
		__atomic_store_n(&vgpu_pool_imports, 1, __ATOMIC_RELAXED);
		result = vgpu_commit(&reservation, VGPU_KIND_IMPORT, given);
		if (result != CUDA_SUCCESS)
			vgpu_cancel(&reservation);
	}
	if (result == CUDA_SUCCESS)
		*dptr = given;
	else
		real_cuMemFree_v2(given);
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
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	struct vgpu_meter *held;
	CUresult result;

	if (vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	vgpu_place_of_device(device, &place);
	held = vgpu_meter_hold_current(place.card);
	result = real_cuDeviceSetMemPool(device, pool);
	vgpu_meter_let_current(held, place.card, result == CUDA_SUCCESS ? pool : NULL);
	return result;
}

/* Whose pool it is that nobody made, only the question tells that it was the answer to. */
static void meet(CUmemoryPool pool, const CUmemLocation *location, int type)
{
	const CUmemPoolProps properties = {.allocation_type = type, .location = *location};
	struct vgpu_place place;

	if (!vgpu_meter_find(pool) && !vgpu_meter_outlives(pool) &&
	    vgpu_place_of_pool(&properties, &place) == CUDA_SUCCESS)
		(void)vgpu_meter_add(pool, place.card);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	CUresult result = real_cuMemGetDefaultMemPool(pool, location, type);

	if (result == CUDA_SUCCESS)
		meet(*pool, location, type);
	return result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	CUresult result = real_cuMemGetMemPool(pool, location, type);

	if (result == CUDA_SUCCESS)
		meet(*pool, location, type);
	return result;
}

/* Of managed memory a device has another current pool, which cuMemAllocAsync does not take from. */
CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	struct vgpu_meter *held;
	CUresult result;

	if (vgpu_meter_outlives(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (location && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == PINNED)
		vgpu_place_of_device(location->id, &place);
	held = vgpu_meter_hold_current(place.card);
	result = real_cuMemSetMemPool(location, type, pool);
	vgpu_meter_let_current(held, place.card, result == CUDA_SUCCESS ? pool : NULL);
	return result;
}
