/*
 * Wrappers of the calls by which processes share device memory. The memory is charged once, however
 * many of the container's processes hold it (shared.h). Memory from a process outside of the
 * container is charged to each process that opens it. Events take no memory, so their calls have no
 * hooks.
 *
 * The driver returns the same address for each opening of a handle, and counts the openings. In the
 * ledger the key of an opening is the address plus the opening's number. No other memory has that
 * key, because addresses are multiples of ADDRESS_STEP.
 */
#include "charge/admission.h"
#include "charge/device_memory.h"
#include "charge/export_key.h"
#include "charge/place.h"
#include "charge/refund.h"
#include "loader/hooks.h"
#include "os/lock.h"
#include "os/step.h"
#include "region/shared.h"
#include "vgpu/region.h"

enum { ADDRESS_STEP = 512 }; /* the driver's alignment, and so the most openings per address */

static uint64_t key_of(const CUipcMemHandle *handle)
{
	return vgpu_export_key_of(handle->reserved, sizeof(handle->reserved), false);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	CUresult result = real_cuIpcGetMemHandle(handle, dptr);
	CUdeviceptr base;

	VGPU_AT(IPC_EXPORTED);
	if (result == CUDA_SUCCESS &&
	    real_cuMemGetAddressRange_v2(&base, NULL, dptr) == CUDA_SUCCESS)
		vgpu_share(VGPU_KIND_MEMORY, base, key_of(handle));
	VGPU_AT(IPC_SHARED);
	return result;
}

/* Held while an opening's number is chosen and entered in the ledger, or removed from it. */
static struct vgpu_lock numbering;

/* How many openings of the address are in the ledger. */
static uint64_t openings(CUdeviceptr dptr)
{
	uint64_t count = 0;

	while (count < ADDRESS_STEP && vgpu_ledger_take(VGPU_KIND_IPC, dptr + count, NULL))
		count++;
	return count;
}

/* Reserve for memory from outside of the container. Its first opening is charged to this process,
 * on the memory's GPU. */
static CUresult reserve_ours(struct vgpu_place current, CUdeviceptr dptr,
			     struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	size_t size_bytes = 0;

	if (vgpu_place_of_address(dptr, &place) == CUDA_SUCCESS)
		current.gpu = place.gpu;
	(void)real_cuMemGetAddressRange_v2(NULL, &size_bytes, dptr);
	return vgpu_reserve_at(current, vgpu_whole_blocks(current.gpu, size_bytes), reservation);
}

/* Enter an opening of `dptr`. Only an address's first opening is charged, with `ours`.
 * CUDA_ERROR_NOT_READY: this is the first opening, and nothing is reserved for it. */
static CUresult write_down(const struct vgpu_reservation *ours, bool reserved, CUdeviceptr dptr,
			   vgpu_hold hold)
{
	struct vgpu_reservation later = {.place = ours->place};
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t opening = ADDRESS_STEP;

	if (vgpu_lock(&numbering)) {
		opening = openings(dptr);
		if (!opening && !reserved && !hold)
			result = CUDA_ERROR_NOT_READY;
		else if (opening < ADDRESS_STEP)
			result = vgpu_commit(opening ? &later : ours, VGPU_KIND_IPC, dptr + opening,
					     hold);
		vgpu_unlock(&numbering);
	}
	if (opening || result != CUDA_SUCCESS)
		vgpu_cancel(ours);
	return result;
}

/* Charge and enter an opening of `dptr`. If that is not possible, close the opening. */
static CUresult keep(struct vgpu_place place, CUdeviceptr dptr, vgpu_hold hold)
{
	struct vgpu_reservation ours = {.place = place};
	CUresult result = write_down(&ours, false, dptr, hold);

	if (result == CUDA_ERROR_NOT_READY) {
		result = reserve_ours(place, dptr, &ours);
		if (result == CUDA_SUCCESS)
			result = write_down(&ours, true, dptr, hold);
	}
	if (result != CUDA_SUCCESS)
		(void)real_cuIpcCloseMemHandle(dptr);
	return result;
}

/* Join the shared slot first, so that the memory stays charged if the exporter exits meanwhile. */
static CUresult open_handle(CUresult (*driver_open)(CUdeviceptr *, CUipcMemHandle, unsigned int),
			    CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
	struct vgpu_shared_charge charge;
	struct vgpu_place place;
	CUdeviceptr given = 0;
	vgpu_hold hold;
	CUresult result = vgpu_place_current(&place);

	/* Before cuInit call the driver for its error code: it checks the flags first. */
	if (result == CUDA_ERROR_NOT_INITIALIZED ||
	    (result == CUDA_SUCCESS && place.gpu == VGPU_GPU_UNMANAGED))
		return driver_open(dptr, handle, flags);
	if (result != CUDA_SUCCESS)
		return result;
	hold = vgpu_shared_join(key_of(&handle), &charge);
	if (hold)
		place.gpu = charge.gpu;
	VGPU_AT(IPC_JOINED);
	result = driver_open(dptr ? &given : NULL, handle, flags);
	VGPU_AT(IPC_OPENED);
	if (result == CUDA_SUCCESS)
		result = keep(place, given, hold);
	VGPU_AT(IPC_KEPT);
	if (result == CUDA_SUCCESS)
		*dptr = given;
	else
		vgpu_shared_leave(hold);
	return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_handle(real_cuIpcOpenMemHandle, dptr, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
	return open_handle(real_cuIpcOpenMemHandle_v2, dptr, handle, flags);
}

/* Take out the address's latest opening, because the first opening has the charge. */
static uint64_t take_latest(CUdeviceptr dptr, struct vgpu_charge *charge)
{
	bool alone = vgpu_lock(&numbering);
	uint64_t opening = openings(dptr);
	uint64_t key = dptr + (opening ? opening - 1 : 0);

	vgpu_refund_begin(VGPU_KIND_IPC, key, charge);
	if (alone)
		vgpu_unlock(&numbering);
	return key;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct vgpu_charge charge;
	uint64_t key = take_latest(dptr, &charge);
	CUresult result = real_cuIpcCloseMemHandle(dptr);

	vgpu_refund_end(VGPU_KIND_IPC, key, &charge, result);
	return result;
}
