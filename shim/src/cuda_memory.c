/*
 * Wrappers of the driver's memory calls: the driver's argument checks and codes stay its own, the
 * amounts are ours. The unsuffixed entries are the 32-bit API that drivers still export.
 */
#include "admission.h"
#include "hooks.h"
#include "meter.h"

static CUresult free_v1(uint64_t address)
{
	return real_cuMemFree((CUdeviceptr_v1)address);
}

static CUresult free_v2(uint64_t address)
{
	return real_cuMemFree_v2(address);
}

static CUresult reserve(uint64_t size_bytes, struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	CUresult result = vgpu_place_current(&place);

	if (result != CUDA_SUCCESS)
		return result;
	return vgpu_reserve_at(place, vgpu_whole_blocks(place.card, size_bytes), reservation);
}

/* What became of a reserved allocation, once the driver has answered. */
static CUresult keep(const struct vgpu_reservation *reservation, CUresult result, uint64_t address,
		     CUresult (*driver_free)(uint64_t address))
{
	if (result == CUDA_SUCCESS) {
		result = vgpu_commit(reservation, VGPU_KIND_MEMORY, address);
		if (result == CUDA_SUCCESS || driver_free(address) != CUDA_SUCCESS)
			return result;
	}
	vgpu_cancel(reservation);
	return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int size_bytes)
{
	struct vgpu_reservation reservation;
	CUresult result;

	if (!dptr || !size_bytes)
		return real_cuMemAlloc(dptr, size_bytes);
	result = reserve(size_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAlloc(dptr, size_bytes));
	return keep(&reservation, result, *dptr, free_v1);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size_bytes)
{
	struct vgpu_reservation reservation;
	CUresult result;

	if (!dptr || !size_bytes)
		return real_cuMemAlloc_v2(dptr, size_bytes);
	result = reserve(size_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAlloc_v2(dptr, size_bytes));
	return keep(&reservation, result, *dptr, free_v2);
}

static CUresult free_known(uint64_t address, CUresult (*driver_free)(uint64_t address))
{
	struct vgpu_charge charge;
	CUresult result;

	vgpu_take(VGPU_KIND_MEMORY, address, &charge);
	result = driver_free(address);
	vgpu_release(VGPU_KIND_MEMORY, address, &charge, result);
	vgpu_meters_read(); /* it may have been a pool's */
	return result;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	return free_known(dptr, free_v1);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	return free_known(dptr, free_v2);
}

/* Limits applied to what the driver said of the current context's device. */
static CUresult view_current(uint64_t *free_bytes, uint64_t *total_bytes)
{
	struct vgpu_memory_view view;
	struct vgpu_place place;
	CUresult result = vgpu_place_current(&place);

	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
		return result;
	vgpu_meters_read();
	view = vgpu_view_of(place.card, *total_bytes, *free_bytes);
	*free_bytes = view.free_bytes;
	*total_bytes = view.total_bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	CUresult result = real_cuMemGetInfo(free_bytes, total_bytes);
	uint64_t free_seen, total_seen;

	if (result != CUDA_SUCCESS || !free_bytes || !total_bytes)
		return result;
	free_seen = *free_bytes;
	total_seen = *total_bytes;
	result = view_current(&free_seen, &total_seen);
	*free_bytes = (unsigned int)free_seen; /* no more than the driver's own 32 bits */
	*total_bytes = (unsigned int)total_seen;
	return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	CUresult result = real_cuMemGetInfo_v2(free_bytes, total_bytes);
	uint64_t free_seen, total_seen;

	if (result != CUDA_SUCCESS || !free_bytes || !total_bytes)
		return result;
	free_seen = *free_bytes;
	total_seen = *total_bytes;
	result = view_current(&free_seen, &total_seen);
	*free_bytes = free_seen;
	*total_bytes = total_seen;
	return result;
}

/* A process that may not use the card sees none of it. */
static uint64_t total_of(CUdevice device, uint64_t total_bytes)
{
	struct vgpu_place place;

	if (vgpu_place_of_device(device, &place) != CUDA_SUCCESS)
		return 0;
	if (place.card == VGPU_CARD_UNMANAGED)
		return total_bytes;
	return vgpu_view_of(place.card, total_bytes, 0).total_bytes;
}

CUresult cuDeviceTotalMem(unsigned int *total_bytes, CUdevice device)
{
	CUresult result = real_cuDeviceTotalMem(total_bytes, device);

	if (result == CUDA_SUCCESS && total_bytes)
		*total_bytes = (unsigned int)total_of(device, *total_bytes);
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *total_bytes, CUdevice device)
{
	CUresult result = real_cuDeviceTotalMem_v2(total_bytes, device);

	if (result == CUDA_SUCCESS && total_bytes)
		*total_bytes = total_of(device, *total_bytes);
	return result;
}
