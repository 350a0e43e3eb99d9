/*
 * Wrappers of physical memory's calls. What cuMemCreate makes is charged to the card that it asks
 * for, until nothing of this process holds it (claims.h). Memory of another process is charged to
 * its importer too, as far as it is mapped: nobody can tell whose a handle is, and the exporter may
 * end first. Reserved addresses and memory of the host cost nothing.
 */
#include "claims.h"
#include "hooks.h"

/* Where physical memory lies. A device that the driver does not know is the driver's to refuse. */
static CUresult place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				  CUdevice *device)
{
	CUuuid uuid;
	CUresult result;

	*place = (struct vgpu_place){.card = VGPU_CARD_UNMANAGED};
	*device = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
		      ? location->id & 0xff
		      : location->id;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE &&
	    location->type != CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		return CUDA_SUCCESS;
	result = vgpu_place_of_device(*device, place);
	if (result == CUDA_SUCCESS && place->card == VGPU_CARD_NOT_GRANTED &&
	    real_cuDeviceGetUuid(&uuid, *device) != CUDA_SUCCESS)
		place->card = VGPU_CARD_UNMANAGED;
	return result;
}

static struct vgpu_claim_to by_handle(uint64_t handle)
{
	return (struct vgpu_claim_to){.kind = VGPU_CLAIM_HANDLE, .key = handle};
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct vgpu_reservation reservation;
	struct vgpu_place place = {.card = VGPU_CARD_UNMANAGED};
	CUdevice device = 0;
	CUresult result = CUDA_SUCCESS;
	uint32_t claim;

	if (handle && prop && size_bytes)
		result = place_of_location(&prop->location, &place, &device);
	if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuMemCreate(handle, size_bytes, prop, flags)
					      : result;
	result = vgpu_reserve_at(place, vgpu_whole_blocks(place.card, size_bytes), &reservation);
	if (result != CUDA_SUCCESS)
		return result;
	claim = vgpu_claim_new(&reservation, device);
	if (!claim) {
		vgpu_cancel(&reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	VGPU_CALL_RESERVED(result, &reservation, real_cuMemCreate(handle, size_bytes, prop, flags));
	if (result == CUDA_SUCCESS)
		vgpu_forget_handle(*handle);
	vgpu_claim_end(claim, result, by_handle(result == CUDA_SUCCESS ? *handle : 0));
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	uint32_t claims = vgpu_take_handle(handle);
	CUresult result = real_cuMemRelease(handle);

	vgpu_settle_claims(claims, result);
	vgpu_drop_closed_exports_if_few();
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

/* The handle of an import may be one that we know: one more reference to the same memory. */
static CUresult claim_import(CUmemGenericAllocationHandle handle)
{
	struct vgpu_place place;
	CUmemAllocationProp prop;
	CUdevice device;
	uint32_t claim;
	CUresult result;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!claim) {
		result = real_cuMemGetAllocationPropertiesFromHandle(&prop, handle);
		if (result == CUDA_SUCCESS)
			result = place_of_location(&prop.location, &place, &device);
		if (result != CUDA_SUCCESS || place.card == VGPU_CARD_UNMANAGED)
			return result;
		claim = place.card < 0 ? 0 : vgpu_claim_import(place, device);
	}
	if (!claim)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_claim_end(claim, CUDA_SUCCESS, by_handle(handle));
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					int type)
{
	CUresult result = real_cuMemImportFromShareableHandle(handle, shareable, type);

	if (result != CUDA_SUCCESS)
		return result;
	result = claim_import(*handle);
	if (result != CUDA_SUCCESS)
		(void)real_cuMemRelease(*handle);
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct vgpu_claim_to to = {
	    .kind = VGPU_CLAIM_MAPPING, .key = address, .extent = size_bytes};
	CUresult result = CUDA_SUCCESS;
	uint32_t claim;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (claim)
		result = vgpu_claim_grow(claim, offset + size_bytes);
	if (result == CUDA_SUCCESS)
		result = real_cuMemMap(address, size_bytes, offset, handle, flags);
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
	uint32_t claims = vgpu_take_mappings(address, size_bytes);
	CUresult result = real_cuMemUnmap(address, size_bytes);

	vgpu_settle_claims(claims, result);
	vgpu_drop_closed_exports_if_few();
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
	if (claim && result == CUDA_SUCCESS)
		vgpu_keep_export(claim, *(int *)shareable);
	else if (claim)
		vgpu_claim_end(claim, result, (struct vgpu_claim_to){.kind = VGPU_CLAIM_EXPORT});
	return result;
}
