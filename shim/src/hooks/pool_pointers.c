/* Wrappers of cuMemPoolExportPointer and cuMemPoolImportPointer; see pool_pointers.h. */
#include "hooks/pool_pointers.h"
#include "charge/device_memory.h"
#include "charge/place.h"
#include "charge/refund.h"

#include "charge/export_key.h"
#include "charge/meters.h"
#include "loader/hooks.h"
#include "region/shared.h"
#include "vgpu/region.h"

enum { POINTER_DEVICE_ORDINAL = 9, POINTER_POOL = 17, EXPORT_BYTES = 64 };

uint32_t vgpu_pool_pointers;

static struct vgpu_meter *meter_of(CUdeviceptr dptr)
{
	CUmemoryPool pool = NULL;

	return real_cuPointerGetAttribute(&pool, POINTER_POOL, dptr) == CUDA_SUCCESS
		   ? vgpu_meter_find(pool)
		   : NULL;
}

void vgpu_take_known_pool_pointer(uint64_t address, struct vgpu_pool_pointer *pointer)
{
	if (vgpu_refund_begin(VGPU_KIND_EXPORT, address, &pointer->exported))
		pointer->meter = meter_of(address);
	(void)vgpu_refund_begin(VGPU_KIND_IMPORT, address, &pointer->imported);
}

/* Freed memory returns to its pool: the meter is charged before the slot is released. */
void vgpu_release_pool_pointer(uint64_t address, const struct vgpu_pool_pointer *pointer,
			       CUresult driver_result)
{
	if (pointer->exported.gpu >= 0) {
		if (driver_result == CUDA_SUCCESS && pointer->meter)
			vgpu_meter_unexported(pointer->meter, pointer->exported.bytes);
		vgpu_refund_end(VGPU_KIND_EXPORT, address, &pointer->exported, driver_result);
	}
	if (pointer->imported.gpu >= 0)
		vgpu_refund_end(VGPU_KIND_IMPORT, address, &pointer->imported, driver_result);
}

/* The GPU, and the size of the allocation. */
static CUresult measure(CUdeviceptr dptr, struct vgpu_reservation *needs)
{
	size_t size_bytes = 0;
	int ordinal = 0;
	CUresult result = real_cuPointerGetAttribute(&ordinal, POINTER_DEVICE_ORDINAL, dptr);

	if (result == CUDA_SUCCESS)
		result = vgpu_place_of_device(ordinal, &needs->place);
	if (result == CUDA_SUCCESS)
		result = real_cuMemGetAddressRange_v2(NULL, &size_bytes, dptr);
	needs->bytes = vgpu_whole_blocks(needs->place.gpu, size_bytes);
	return result;
}

static void share(CUdeviceptr dptr, const void *data)
{
	struct vgpu_reservation charge = {.place = {.gpu = VGPU_GPU_UNMANAGED}};
	struct vgpu_meter *meter = meter_of(dptr);
	vgpu_hold hold;

	if (!meter || vgpu_ledger_has(VGPU_KIND_EXPORT, dptr) ||
	    measure(dptr, &charge) != CUDA_SUCCESS || charge.place.gpu < 0)
		return;
	hold = vgpu_shared_export((struct vgpu_shared_charge){charge.place.gpu, charge.bytes},
				  vgpu_export_key_of(data, EXPORT_BYTES, false));
	if (!hold)
		return;
	__atomic_store_n(&vgpu_pool_pointers, 1, __ATOMIC_RELAXED);
	vgpu_meter_exported(meter, charge.bytes);
	charge.place.context = 0;
	if (vgpu_commit_shared(&charge, VGPU_KIND_EXPORT, dptr, hold) != CUDA_SUCCESS) {
		vgpu_meter_unexported(meter, charge.bytes);
		vgpu_shared_leave(hold);
	}
}

CUresult cuMemPoolExportPointer(void *data, CUdeviceptr dptr)
{
	CUresult result = real_cuMemPoolExportPointer(data, dptr);

	if (result == CUDA_SUCCESS)
		share(dptr, data);
	return result;
}

static CUresult charge_import(CUdeviceptr dptr, vgpu_hold *hold)
{
	struct vgpu_reservation needs = {.place = {.gpu = VGPU_GPU_UNMANAGED}};
	CUresult result = measure(dptr, &needs);

	if (result != CUDA_SUCCESS || needs.place.gpu == VGPU_GPU_UNMANAGED)
		return result;
	if (!*hold)
		result = vgpu_reserve_at(needs.place, needs.bytes, &needs);
	if (result != CUDA_SUCCESS)
		return result;
	__atomic_store_n(&vgpu_pool_pointers, 1, __ATOMIC_RELAXED);
	result = vgpu_commit_shared(&needs, VGPU_KIND_IMPORT, dptr, *hold);
	if (result == CUDA_SUCCESS)
		*hold = 0;
	else if (!*hold)
		vgpu_cancel(&needs);
	return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *dptr, CUmemoryPool pool, void *data)
{
	struct vgpu_shared_charge charge;
	vgpu_hold hold =
	    data ? vgpu_shared_join(vgpu_export_key_of(data, EXPORT_BYTES, false), &charge) : 0;
	CUdeviceptr given = 0;
	CUresult result = real_cuMemPoolImportPointer(dptr ? &given : NULL, pool, data);

	if (result == CUDA_SUCCESS) {
		result = charge_import(given, &hold);
		if (result == CUDA_SUCCESS)
			*dptr = given;
		else
			(void)real_cuMemFree_v2(given);
	}
	vgpu_shared_leave(hold);
	return result;
}
