/* Wrappers of the driver's calls that allocate, free and report memory. */
#include "charge/admission.h"
#include "charge/claims.h"
#include "charge/device_memory.h"
#include "charge/meters.h"
#include "charge/place.h"
#include "charge/refund.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

enum { PITCH_BYTES = 512, ATTACH_GLOBAL = 1, ATTACH_HOST = 2 };

/* Charge a refused allocation that the driver failed to free, until the process ends. */
static void keep_lost(const struct vgpu_reservation *reservation, uint64_t size_bytes)
{
	uint64_t bytes = vgpu_whole_blocks(reservation->place.gpu, size_bytes);

	if (bytes > reservation->bytes)
		(void)vgpu_charge(reservation->place.gpu, bytes - reservation->bytes);
}

/* Charge what the driver allocated at `address`, and return the address in `*out`. If it does not
 * fit, free it. */
static CUresult keep(struct vgpu_reservation *reservation, CUresult result, uint64_t address,
		     uint64_t size_bytes, CUdeviceptr *out)
{
	if (result == CUDA_SUCCESS) {
		result = vgpu_keep_memory(reservation, address, size_bytes);
		if (result == CUDA_SUCCESS) {
			*out = address;
			return result;
		}
		if (real_cuMemFree_v2(address) != CUDA_SUCCESS) {
			keep_lost(reservation, size_bytes);
			return result;
		}
	}
	vgpu_cancel(reservation);
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
	return keep(&reservation, result, given, size_bytes, dptr);
}

static bool managed_is_free(void)
{
	struct vgpu_place place;

	return vgpu_place_current(&place) == CUDA_SUCCESS && place.gpu >= 0 &&
	       !vgpu_managed_is_charged(place.gpu);
}

/* Managed memory is charged in full at once, like device memory, wherever its pages are later. If
 * the grant lets managed memory exceed the GPU, nothing is charged. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size_bytes, unsigned int flags)
{
	struct vgpu_reservation reservation;
	CUdeviceptr given = 0;
	CUresult result;

	if (!dptr || !size_bytes || managed_is_free())
		return real_cuMemAllocManaged(dptr, size_bytes, flags);
	result = vgpu_reserve_memory(size_bytes, &reservation);
	/* Before cuInit call the driver for its error code: it checks the flags first. */
	if (result == CUDA_ERROR_NOT_INITIALIZED)
		return real_cuMemAllocManaged(dptr, size_bytes, flags);
	if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST)
		result = vgpu_defer_to_driver(&reservation, result);
	if (result != CUDA_SUCCESS)
		return result;
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemAllocManaged(&given, size_bytes, flags));
	return keep(&reservation, result, given, size_bytes, dptr);
}

/* Reserve for rows of the largest pitch that any driver chooses. */
static CUresult reserve_pitched(uint64_t width_bytes, uint64_t rows, unsigned int element_bytes,
				struct vgpu_reservation *reservation)
{
	uint64_t pitch_bytes = (width_bytes + PITCH_BYTES - 1) & ~(uint64_t)(PITCH_BYTES - 1);
	uint64_t bytes;
	bool malformed =
	    pitch_bytes < width_bytes || __builtin_mul_overflow(pitch_bytes, rows, &bytes);
	CUresult result = vgpu_reserve_memory(malformed ? UINT64_MAX : bytes, reservation);

	malformed |= element_bytes != 4 && element_bytes != 8 && element_bytes != 16;
	return malformed ? vgpu_defer_to_driver(reservation, result) : result;
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
	result = keep(&reservation, result, given, (uint64_t)given_pitch * height, dptr);
	if (result == CUDA_SUCCESS)
		*pitch = given_pitch;
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	struct vgpu_charge charge;
	uint32_t view;
	CUresult result;

	vgpu_refund_begin(VGPU_KIND_MEMORY, address, &charge);
	view = vgpu_take_view(address);
	result = real_cuMemFree_v2(address);
	vgpu_refund_end(VGPU_KIND_MEMORY, address, &charge, result);
	if (view)
		vgpu_settle_claims(view, result);
	if (charge.gpu < 0 && !view) /* the memory may belong to a pool */
		vgpu_meters_changed();
	vgpu_meters_read(&cuMemFree_v2);
	return result;
}

/* Apply the limits to the driver's figures for the current context's device. */
static CUresult view_current(uint64_t *free_bytes, uint64_t *total_bytes)
{
	struct vgpu_memory_view view;
	struct vgpu_place place;
	CUresult result = vgpu_place_only(&place) ? CUDA_SUCCESS : vgpu_place_current(&place);

	if (result != CUDA_SUCCESS || place.gpu == VGPU_GPU_UNMANAGED)
		return result;
	vgpu_meters_read(&cuMemGetInfo_v2);
	view = vgpu_view_of(place.gpu, *total_bytes, *free_bytes);
	*free_bytes = view.free_bytes;
	*total_bytes = view.total_bytes;
	return CUDA_SUCCESS;
}

/* Some drivers accept NULL for one of the pointers. Then the limit is applied to the other figure
 * only. No figure shown exceeds the driver's. */
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	size_t free_reported = 0, total_reported = 0;
	uint64_t free_shown, total_shown;
	CUresult result = real_cuMemGetInfo_v2(free_bytes ? &free_reported : NULL,
					       total_bytes ? &total_reported : NULL);

	if (result != CUDA_SUCCESS)
		return result;
	free_shown = free_reported;
	total_shown = total_bytes ? total_reported : UINT64_MAX;
	result = view_current(&free_shown, &total_shown);
	if (free_bytes)
		*free_bytes = free_shown;
	if (total_bytes)
		*total_bytes = total_shown;
	return result;
}

/* The total that the program sees. It is 0 if the process may not use the GPU. */
static uint64_t total_of(CUdevice device, uint64_t total_bytes)
{
	struct vgpu_place place;

	if (vgpu_place_of_device(device, &place) != CUDA_SUCCESS)
		return 0;
	if (place.gpu == VGPU_GPU_UNMANAGED)
		return total_bytes;
	return vgpu_view_of(place.gpu, total_bytes, 0).total_bytes;
}

CUresult cuDeviceTotalMem_v2(size_t *total_bytes, CUdevice device)
{
	CUresult result = real_cuDeviceTotalMem_v2(total_bytes, device);

	if (result == CUDA_SUCCESS && total_bytes)
		*total_bytes = total_of(device, *total_bytes);
	return result;
}
