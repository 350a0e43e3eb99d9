/* The wrapper of cuMemPoolImportPointer; see pool_pointers.h. */
#include "hooks/pool_pointers.h"
#include "charge/device_memory.h"
#include "charge/place.h"
#include "loader/hooks.h"

enum { POINTER_DEVICE_ORDINAL = 9 };

uint32_t vgpu_pool_pointers;

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

static CUresult charge_import(CUdeviceptr dptr)
{
	struct vgpu_reservation needs = {.place = {.gpu = VGPU_GPU_UNMANAGED}};
	CUresult result = measure(dptr, &needs);

	if (result != CUDA_SUCCESS || needs.place.gpu == VGPU_GPU_UNMANAGED)
		return result;
	result = vgpu_reserve_at(needs.place, needs.bytes, &needs);
	if (result != CUDA_SUCCESS)
		return result;
	__atomic_store_n(&vgpu_pool_pointers, 1, __ATOMIC_RELAXED);
	result = vgpu_commit(&needs, VGPU_KIND_IMPORT, dptr);
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
