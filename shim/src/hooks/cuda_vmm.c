/*
 * Wrappers of the calls for physical memory. Memory from cuMemCreate is charged to the requested
 * GPU until this process no longer holds it (claims.h). Exported memory is charged to a shared slot
 * of the container (shared.h). The exporter and all importers hold the slot, and importers are not
 * charged themselves. If imported memory comes from outside the container, each of its mappings is
 * charged. Reserved addresses and host memory cost nothing.
 */
#include "charge/claims.h"
#include "charge/device_memory.h"
#include "charge/export_key.h"
#include "charge/place.h"
#include "loader/capture_mode.h"
#include "loader/hooks.h"
#include "os/step.h"
#include "vgpu/region.h"

enum { MINIMUM = 0 }; /* CU_MEM_ALLOC_GRANULARITY_ */
enum { HANDLE_TYPE_FABRIC = 8, FABRIC_HANDLE_BYTES = 64 };

/* The claim of a handle that the driver may have returned before. Each call that returns it adds a
 * claim, because each needs its own release. */
static struct vgpu_claim_to by_handle(uint64_t handle)
{
	return (struct vgpu_claim_to){VGPU_CLAIM_HANDLE, true, .key = handle};
}

/* Return the error of memory that does not fit. If the arguments are malformed, return the driver's
 * error instead. */
static CUresult refuse(uint64_t size_bytes, const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	CUmemGenericAllocationHandle given;
	size_t granule_bytes = 0;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (flags ||
	    real_cuMemGetAllocationGranularity(&granule_bytes, prop, MINIMUM) != CUDA_SUCCESS ||
	    (granule_bytes && size_bytes % granule_bytes))
		result = real_cuMemCreate(&given, size_bytes, prop, flags);
	if (result != CUDA_SUCCESS)
		return result;
	(void)real_cuMemRelease(given);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct vgpu_physical memory = {.device = 0};
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUmemGenericAllocationHandle given = 0;
	CUresult result = CUDA_SUCCESS;
	uint32_t claim;

	if (handle && prop && size_bytes)
		result = vgpu_place_of_location(&prop->location, &place, &memory.device);
	if (result != CUDA_SUCCESS || place.gpu == VGPU_GPU_UNMANAGED)
		return result == CUDA_SUCCESS ? real_cuMemCreate(handle, size_bytes, prop, flags)
					      : result;
	result =
	    vgpu_claim_reserved(place, vgpu_whole_blocks(place.gpu, size_bytes), &memory, &claim);
	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_OUT_OF_MEMORY && place.gpu >= 0
			   ? refuse(size_bytes, prop, flags)
			   : result;
	VGPU_CALL_RESERVED(result, &memory.charge,
			   real_cuMemCreate(&given, size_bytes, prop, flags));
	vgpu_claim_end(claim, result,
		       (struct vgpu_claim_to){.kind = VGPU_CLAIM_HANDLE, .key = given});
	if (result == CUDA_SUCCESS)
		*handle = given;
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	uint32_t claims = vgpu_take_claim(VGPU_CLAIM_HANDLE, handle);
	CUresult result = real_cuMemRelease(handle);

	vgpu_settle_claims(claims, result);
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

/* An import of a handle. If a process of the container exported it, the shared slot is joined
 * before the driver's call, so that the memory stays charged if the exporter exits meanwhile. */
struct import {
	uint64_t key;
	vgpu_hold hold; /* 0: no process of the container has exported the memory */
	struct vgpu_shared_charge charge;
};

static bool join(struct import *import, uint64_t key)
{
	import->key = key;
	import->hold = key ? vgpu_shared_join(key, &import->charge) : 0;
	return import->hold;
}

static struct import join_exporter(const void *shareable, int type)
{
	struct import import = {0};

	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		(void)join(&import, vgpu_export_key_read((int)(intptr_t)shareable));
	else if (type == HANDLE_TYPE_FABRIC && shareable &&
		 !join(&import, vgpu_export_key_of(shareable, FABRIC_HANDLE_BYTES, false)))
		(void)join(&import, vgpu_export_key_of(shareable, FABRIC_HANDLE_BYTES, true));
	return import;
}

/* Find how to charge an imported handle. False: nothing is to be charged, or `*result` is an
 * error. */
static bool is_known(CUmemGenericAllocationHandle handle, const struct import *import,
		     struct vgpu_physical *memory, CUresult *result)
{
	struct vgpu_place place = {.gpu = VGPU_GPU_UNMANAGED};
	CUmemAllocationProp prop;

	*result = CUDA_SUCCESS;
	*memory =
	    (struct vgpu_physical){.charge.place = place, .hold = import->hold, .key = import->key};
	if (import->hold && vgpu_export_key_is_multicast(import->key)) {
		memory->device = VGPU_MULTICAST;
		return true;
	}
	if (real_cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS)
		return import->hold;
	*result = vgpu_place_of_location(&prop.location, &place, &memory->device);
	if (place.gpu == VGPU_GPU_NOT_GRANTED)
		*result = CUDA_ERROR_OUT_OF_MEMORY;
	memory->charge.place = place;
	memory->foreign = !import->hold;
	return place.gpu >= 0;
}

/* Claim an imported handle. If the handle is known already, the import is one more reference to the
 * same memory. */
static CUresult claim_import(CUmemGenericAllocationHandle handle, struct import *import)
{
	struct vgpu_physical memory;
	CUresult result;
	uint32_t claim;

	if (!vgpu_claim_handle(handle, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!claim) {
		if (!is_known(handle, import, &memory, &result))
			return result;
		claim = vgpu_claim_new(&memory);
		if (!claim)
			return CUDA_ERROR_OUT_OF_MEMORY;
		import->hold = 0;
	}
	vgpu_claim_end(claim, CUDA_SUCCESS, by_handle(handle));
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					int type)
{
	CUmemGenericAllocationHandle given = 0;
	struct import import = join_exporter(shareable, type);
	CUresult result;
	int mode;

	result = real_cuMemImportFromShareableHandle(handle ? &given : NULL, shareable, type);
	if (result == CUDA_SUCCESS) {
		mode = vgpu_capture_mode_relax();
		result = claim_import(given, &import);
		if (result == CUDA_SUCCESS)
			*handle = given;
		else
			(void)real_cuMemRelease(given);
		vgpu_capture_mode_restore(mode);
	}
	vgpu_shared_leave(import.hold);
	return result;
}

/* Claim and charge one mapping of memory from outside the container. */
static CUresult claim_foreign(const struct vgpu_physical *memory, uint64_t size_bytes,
			      uint32_t *claim)
{
	struct vgpu_physical mapped = {.device = memory->device};
	struct vgpu_place place = memory->charge.place;

	return vgpu_claim_reserved(place, vgpu_whole_blocks(place.gpu, size_bytes), &mapped, claim);
}

static CUresult claim_mapping(CUmemGenericAllocationHandle handle, uint64_t size_bytes,
			      uint32_t *claim)
{
	struct vgpu_physical memory;
	uint32_t named;
	CUresult result;

	if (!vgpu_claim_handle(handle, claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory = vgpu_claimed_physical(*claim);
	if (!memory.foreign)
		return CUDA_SUCCESS;
	named = *claim;
	*claim = 0;
	result = claim_foreign(&memory, size_bytes, claim);
	vgpu_settle_claims(named, CUDA_SUCCESS);
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct vgpu_claim_to to = {
	    .kind = VGPU_CLAIM_MAPPING, .key = address, .extent = size_bytes};
	uint32_t claim;
	CUresult result = claim_mapping(handle, size_bytes, &claim);

	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuMemMap(address, size_bytes, offset, handle, flags);
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
	uint32_t claims = vgpu_take_mappings(address, size_bytes);
	CUresult result = real_cuMemUnmap(address, size_bytes);

	vgpu_settle_claims(claims, result);
	return result;
}

/* Move the memory's charge to a shared slot, unless it is there already. Return the key by which
 * importers find the slot. 0: the charge stays with this process. */
static uint64_t share(uint32_t claim, uint64_t key)
{
	struct vgpu_physical memory = vgpu_claimed_physical(claim);
	struct vgpu_shared_charge charge = {
	    memory.device == VGPU_MULTICAST ? 0 : memory.charge.place.gpu, memory.charge.bytes};
	vgpu_hold hold;

	if (memory.hold)
		return memory.key;
	if (memory.foreign || charge.gpu < 0)
		return 0;
	hold = vgpu_shared_export(charge, key);
	if (!hold)
		return 0;
	VGPU_AT(EXPORT_SHARED);
	if (vgpu_claimed_share(claim, hold, key))
		return key;
	vgpu_shared_leave(hold);
	return vgpu_claimed_physical(claim).key;
}

/* Share memory that the driver has exported, as a descriptor or as the bytes of a fabric handle. */
static void share_export(CUmemGenericAllocationHandle handle, const void *shareable, int type)
{
	uint32_t claim;
	uint64_t key;
	bool multicast;

	if (!vgpu_claim_handle(handle, &claim) || !claim)
		return;
	multicast = vgpu_claimed_physical(claim).device == VGPU_MULTICAST;
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		key = share(claim, vgpu_export_key_new(multicast));
		if (key)
			(void)vgpu_export_key_write(*(const int *)shareable, key);
	} else if (type == HANDLE_TYPE_FABRIC) {
		(void)share(claim, vgpu_export_key_of(shareable, FABRIC_HANDLE_BYTES, multicast));
	}
	vgpu_settle_claims(claim, CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      int type, unsigned long long flags)
{
	CUresult result = real_cuMemExportToShareableHandle(shareable, handle, type, flags);

	VGPU_AT(EXPORT_CALLED);
	if (result == CUDA_SUCCESS)
		share_export(handle, shareable, type);
	VGPU_AT(EXPORT_KEPT);
	return result;
}
