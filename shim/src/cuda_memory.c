/*
 * Wrappers of the driver's memory calls: the driver's argument checks and codes stay its own, the
 * amounts are ours. The unsuffixed entries are the 32-bit API that drivers still export.
 */
#include "admission.h"
#include "claims.h"
#include "device_memory.h"
#include "hooks.h"
#include "meter.h"
#include "stream_frees.h"

enum { PITCH_BYTES = 512, ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };

static CUresult free_v1(uint64_t address)
{
	return real_cuMemFree((CUdeviceptr_v1)address);
}

static CUresult free_v2(uint64_t address)
{
	return real_cuMemFree_v2(address);
}

/* Refused, and yet the driver will not take it back: nobody has its address, until the context
 * ends. */
static void keep_lost(struct vgpu_reservation *reservation, uint64_t size_bytes)
{
	struct vgpu_place place = reservation->place;

	vgpu_charge_measured(place, (int64_t)vgpu_whole_blocks(place.card, size_bytes));
	vgpu_cancel(reservation);
}

/* What became of a reserved allocation, once the driver has answered. */
static CUresult keep(struct vgpu_reservation *reservation, CUresult result, uint64_t address,
		     uint64_t size_bytes, CUresult (*driver_free)(uint64_t address))
{
	if (result == CUDA_SUCCESS) {
		result = vgpu_keep_memory(reservation, address, size_bytes);
		if (result == CUDA_SUCCESS) {
			vgpu_end_free(address);
			return result;
		}
		if (driver_free(address) != CUDA_SUCCESS) {
			keep_lost(reservation, size_bytes);
			return result;
		}
	}
	vgpu_cancel(reservation);
	return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int size_bytes)
{
	struct vgpu_reservation reservation;
	CUdeviceptr_v1 given = 0;
	CUresult result;

	if (!dptr || !size_bytes)
		return real_cuMemAlloc(dptr, size_bytes);
	result = vgpu_reserve_memory(size_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAlloc(&given, size_bytes));
	result = keep(&reservation, result, given, size_bytes, free_v1);
	if (result == CUDA_SUCCESS)
		*dptr = given;
	return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size_bytes)
{
	struct vgpu_reservation reservation;
	CUdeviceptr given = 0;
	CUresult result;

	if (!dptr || !size_bytes)
		return real_cuMemAlloc_v2(dptr, size_bytes);
	result = vgpu_reserve_memory(size_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAlloc_v2(&given, size_bytes));
	result = keep(&reservation, result, given, size_bytes, free_v2);
	if (result == CUDA_SUCCESS)
		*dptr = given;
	return result;
}

/* In full from the start, as device memory, wherever its pages go later. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size_bytes, unsigned int flags)
{
	struct vgpu_reservation reservation;
	CUdeviceptr given = 0;
	CUresult result;

	if (!dptr || !size_bytes)
		return real_cuMemAllocManaged(dptr, size_bytes, flags);
	result = vgpu_reserve_memory(size_bytes, &reservation);
	if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)
		result = vgpu_ask_all_the_same(&reservation, result);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAllocManaged(&given, size_bytes, flags));
	result = keep(&reservation, result, given, size_bytes, free_v2);
	if (result == CUDA_SUCCESS)
		*dptr = given;
	return result;
}

/* Rows as far apart as drivers put them at most; how far they are, the driver says. */
static uint64_t pitched_bytes(uint64_t width_bytes, uint64_t rows)
{
	uint64_t pitch_bytes = (width_bytes + PITCH_BYTES - 1) & ~(uint64_t)(PITCH_BYTES - 1);
	uint64_t bytes;

	return pitch_bytes < width_bytes || __builtin_mul_overflow(pitch_bytes, rows, &bytes)
		   ? UINT64_MAX
		   : bytes;
}

static CUresult reserve_pitched(uint64_t width_bytes, uint64_t rows, unsigned int element_bytes,
				struct vgpu_reservation *reservation)
{
	uint64_t bytes = pitched_bytes(width_bytes, rows);
	CUresult result = vgpu_reserve_memory(bytes, reservation);

	if (bytes == UINT64_MAX ||
	    (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
		return vgpu_ask_all_the_same(reservation, result);
	return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width_bytes,
			 unsigned int height, unsigned int element_bytes)
{
	struct vgpu_reservation reservation;
	CUdeviceptr_v1 given = 0;
	unsigned int given_pitch = 0;
	CUresult result;

	if (!dptr || !pitch || !width_bytes || !height)
		return real_cuMemAllocPitch(dptr, pitch, width_bytes, height, element_bytes);
	result = reserve_pitched(width_bytes, height, element_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(
	    result, &reservation,
	    real_cuMemAllocPitch(&given, &given_pitch, width_bytes, height, element_bytes));
	result = keep(&reservation, result, given, (uint64_t)given_pitch * height, free_v1);
	if (result == CUDA_SUCCESS) {
		*dptr = given;
		*pitch = given_pitch;
	}
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width_bytes, size_t height,
			    unsigned int element_bytes)
{
	struct vgpu_reservation reservation;
	CUdeviceptr given = 0;
	size_t given_pitch = 0;
	CUresult result;

	if (!dptr || !pitch || !width_bytes || !height)
		return real_cuMemAllocPitch_v2(dptr, pitch, width_bytes, height, element_bytes);
	result = reserve_pitched(width_bytes, height, element_bytes, &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(
	    result, &reservation,
	    real_cuMemAllocPitch_v2(&given, &given_pitch, width_bytes, height, element_bytes));
	result = keep(&reservation, result, given, (uint64_t)given_pitch * height, free_v2);
	if (result == CUDA_SUCCESS) {
		*dptr = given;
		*pitch = given_pitch;
	}
	return result;
}

static CUresult free_known(uint64_t address, CUresult (*driver_free)(uint64_t address))
{
	struct vgpu_charge charge, imported;
	uint32_t view;
	CUresult result;

	vgpu_take(VGPU_KIND_MEMORY, address, &charge);
	vgpu_take_import(address, &imported);
	view = vgpu_take_view(address);
	result = driver_free(address);
	vgpu_release(VGPU_KIND_MEMORY, address, &charge, result);
	vgpu_release(VGPU_KIND_IMPORT, address, &imported, result);
	if (view)
		vgpu_settle_claims(view, result);
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
	vgpu_settle_frees();
	vgpu_meters_read();
	vgpu_drop_closed_exports_if_cheap(VGPU_FEW_FOR_A_REPORT);
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
