/*
 * Wrappers of physical memory's calls. What cuMemCreate makes is charged to the card that it asks
 * for, until nothing of this process holds it (claims.h). Memory of another process is charged to
 * its importer too: nobody can tell whose a handle is, and the exporter may end first. Reserved
 * addresses and memory of the host cost nothing.
 */
#include "claims.h"
#include "hooks.h"
#include "import_size.h"
#include "location.h"
#include "step.h"

enum { RELAXED = 2, MINIMUM = 0 }; /* CU_STREAM_CAPTURE_MODE_, CU_MEM_ALLOC_GRANULARITY_ */
enum { DMA_BUFFER = 1 };	   /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

static struct vgpu_claim_to by_handle(uint64_t handle)
{
	return (struct vgpu_claim_to){.kind = VGPU_CLAIM_HANDLE, .key = handle};
}

/* By the driver's own rules, which it is asked for. */
static bool is_malformed(uint64_t size_bytes, const CUmemAllocationProp *prop,
			 unsigned long long flags)
{
	size_t granule_bytes = 0;

	return flags ||
	       real_cuMemGetAllocationGranularity(&granule_bytes, prop, MINIMUM) != CUDA_SUCCESS ||
	       (granule_bytes && size_bytes % granule_bytes);
}

/* It does not fit. What is malformed besides, the driver says; it has nothing to give. */
static CUresult refuse(uint64_t size_bytes, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	CUmemGenericAllocationHandle given;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (is_malformed(size_bytes, prop, flags)) {
		result = real_cuMemCreate(&given, size_bytes, prop, flags);
		if (result == CUDA_SUCCESS) {
			(void)real_cuMemRelease(given);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct vgpu_reservation reservation;
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	CUmemGenericAllocationHandle given = 0;
	CUdevice device = 0;
	CUresult result = CUDA_SUCCESS;
	uint32_t claim;

	if (handle && prop && size_bytes)
		result = vgpu_place_of_location(&prop->location, &place, &device);
	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuMemCreate(handle, size_bytes, prop, flags)
					      : result;
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.card, size_bytes), &reservation);
	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_OUT_OF_MEMORY && place.card >= 0
			   ? refuse(size_bytes, prop, flags)
			   : result;
	claim = vgpu_claim_new(&reservation, device);
	if (!claim) {
		vgpu_cancel(&reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemCreate(&given, size_bytes, prop, flags));
	if (result == CUDA_SUCCESS)
		vgpu_forget_handle(given);
	vgpu_claim_end(claim, result, by_handle(given));
	if (result == CUDA_SUCCESS)
		*handle = given;
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	uint32_t claims = vgpu_take_handle(handle);
	CUresult result = real_cuMemRelease(handle);

	vgpu_settle_claims(claims, result);
	vgpu_drop_closed_exports_if_cheap(VGPU_FEW_FOR_A_RELEASE);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result;
	uint32_t claim;

	if (!vgpu_claim_range((uintptr_t)address, 1, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMemRetainAllocationHandle(handle, address);
	vgpu_claim_end(claim, result, by_handle(result == CUDA_SUCCESS ? *handle : 0));
	return result;
}

/* What the driver has no properties of is a multicast object. */
static CUresult claim_new_import(CUmemGenericAllocationHandle handle, int fd, uint32_t *claim)
{
	struct vgpu_reservation charge = {.place = {.card = VGPU_CARD_UNMANAGED}};
	struct vgpu_place place;
	CUmemAllocationProp prop;
	CUdevice device;
	uint64_t bytes;
	CUresult result = real_cuMemGetAllocationPropertiesFromHandle(&prop, handle);

	if (result == CUDA_SUCCESS)
		result = vgpu_place_of_location(&prop.location, &place, &device);
	else if (result == CUDA_ERROR_INVALID_VALUE)
		place = charge.place, result = CUDA_SUCCESS;
	if (result == CUDA_SUCCESS && place.card >= 0) {
		bytes = vgpu_import_bytes(handle, &prop, device);
		*claim = fd >= 0 ? vgpu_claim_export(fd, place.card, bytes) : 0;
		if (*claim)
			return CUDA_SUCCESS;
		result = vgpu_reserve_at(place, bytes, &charge);
	}
	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_NOT_GRANTED)
		return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
	*claim = vgpu_claim_new(&charge, place.card >= 0 ? device : VGPU_MULTICAST);
	if (!*claim)
		vgpu_cancel(&charge);
	return CUDA_SUCCESS;
}

/* The handle of an import may be one that we know: one more reference to the same memory. */
static CUresult claim_import(CUmemGenericAllocationHandle handle, int fd)
{
	CUresult result = CUDA_SUCCESS;
	uint32_t claim;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!claim)
		result = claim_new_import(handle, fd, &claim);
	if (!claim)
		return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
	vgpu_claim_end(claim, CUDA_SUCCESS, by_handle(handle));
	return CUDA_SUCCESS;
}

/* It holds the memory as long as it is open, also without the import. */
static CUresult claim_descriptor(CUmemGenericAllocationHandle handle, int fd)
{
	uint32_t claim;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_forget_exports(fd);
	if (claim)
		vgpu_keep_export(claim, fd);
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					int type)
{
	CUmemGenericAllocationHandle given = 0;
	int fd = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? (int)(intptr_t)shareable : -1;
	CUresult exchanged, result;
	int mode = RELAXED; /* a capture must not mind */

	result = real_cuMemImportFromShareableHandle(handle ? &given : NULL, shareable, type);
	if (result != CUDA_SUCCESS)
		return result;
	exchanged = real_cuThreadExchangeStreamCaptureMode(&mode);
	result = claim_import(given, fd);
	if (result == CUDA_SUCCESS && fd >= 0) {
		result = claim_descriptor(given, fd);
		if (result != CUDA_SUCCESS)
			vgpu_settle_claims(vgpu_take_handle(given), CUDA_SUCCESS);
	}
	if (result == CUDA_SUCCESS)
		*handle = given;
	else
		(void)real_cuMemRelease(given);
	if (exchanged == CUDA_SUCCESS)
		real_cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct vgpu_claim_to to = {
	    .kind = VGPU_CLAIM_MAPPING, .key = address, .extent = size_bytes};
	CUresult result;
	uint32_t claim;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMemMap(address, size_bytes, offset, handle, flags);
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
	uint32_t claims = vgpu_take_mappings(address, size_bytes);
	CUresult result = real_cuMemUnmap(address, size_bytes);

	vgpu_settle_claims(claims, result);
	vgpu_drop_closed_exports_if_cheap(VGPU_FEW_FOR_A_RELEASE);
	return result;
}

/* A descriptor holds the memory, also when its last handle has been released. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      int type, unsigned long long flags)
{
	CUresult result;
	uint32_t claim = 0;

	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMemExportToShareableHandle(shareable, handle, type, flags);
	VGPU_AT(EXPORT_CALLED);
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && result == CUDA_SUCCESS)
		vgpu_forget_exports(*(int *)shareable);
	if (claim && result == CUDA_SUCCESS)
		vgpu_keep_export(claim, *(int *)shareable);
	else if (claim)
		vgpu_claim_end(claim, result, (struct vgpu_claim_to){.kind = VGPU_CLAIM_EXPORT});
	VGPU_AT(EXPORT_KEPT);
	return result;
}

/* A DMA buffer of what is mapped is a descriptor like that; of other memory nothing is claimed. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size_bytes,
				       int type, unsigned long long flags)
{
	CUresult result;
	uint32_t claims = 0;

	if (type == DMA_BUFFER && !vgpu_claim_range(address, size_bytes, &claims))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMemGetHandleForAddressRange(handle, address, size_bytes, type, flags);
	if (type == DMA_BUFFER && result == CUDA_SUCCESS)
		vgpu_forget_exports(*(int *)handle);
	if (claims && result == CUDA_SUCCESS)
		vgpu_keep_export(claims, *(int *)handle);
	else if (claims)
		vgpu_claim_end(claims, result, (struct vgpu_claim_to){.kind = VGPU_CLAIM_EXPORT});
	return result;
}
