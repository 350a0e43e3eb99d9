/* See import_size.h. */
#include "import_size.h"

#include "hooks.h"
#include "location.h"

enum { RELAXED = 2, MINIMUM = 0 }; /* CU_STREAM_CAPTURE_MODE_, CU_MEM_ALLOC_GRANULARITY_ */

/* Of all that can be mapped at the address, how much of the handle can be; all or nothing proves
 * nothing, and neither does a driver that has no room to try. */
static bool most_mapped(CUdeviceptr address, uint64_t granules, size_t granule_bytes,
			CUmemGenericAllocationHandle handle, uint64_t *bytes)
{
	uint64_t fits = 0, too_many = granules + 1;

	while (too_many - fits > 1) {
		uint64_t wanted = fits + (too_many - fits) / 2;
		CUresult result = real_cuMemMap(address, wanted * granule_bytes, 0, handle, 0);

		if (result == CUDA_SUCCESS)
			result = real_cuMemUnmap(address, wanted * granule_bytes), fits = wanted;
		else if (result == CUDA_ERROR_INVALID_VALUE)
			result = CUDA_SUCCESS, too_many = wanted;
		if (result != CUDA_SUCCESS)
			return false;
	}
	*bytes = fits * granule_bytes;
	return fits && fits < granules;
}

/* As many addresses as are to be had, up to the card's bytes. */
static uint64_t reserve_addresses(CUdeviceptr *address, uint64_t granules, size_t granule_bytes)
{
	while (granules &&
	       real_cuMemAddressReserve(address, granules * granule_bytes, 0, 0, 0) != CUDA_SUCCESS)
		granules /= 2;
	return granules;
}

uint64_t vgpu_import_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *prop,
			   CUdevice device)
{
	size_t granule_bytes = 0, card_bytes = 0;
	uint64_t granules, most_granules, bytes = 0;
	CUdeviceptr address;
	bool proven;

	if (real_cuDeviceTotalMem_v2(&card_bytes, device) != CUDA_SUCCESS)
		return UINT64_MAX;
	if (real_cuMemGetAllocationGranularity(&granule_bytes, prop, MINIMUM) != CUDA_SUCCESS ||
	    !granule_bytes)
		return card_bytes;
	most_granules = card_bytes / granule_bytes;
	granules = reserve_addresses(&address, most_granules, granule_bytes);
	if (!granules)
		return card_bytes;
	proven = most_mapped(address, granules, granule_bytes, handle, &bytes);
	(void)real_cuMemAddressFree(address, granules * granule_bytes);
	return proven ? bytes : card_bytes;
}

static bool measure(CUmemGenericAllocationHandle handle, struct vgpu_place *place, uint64_t *bytes)
{
	struct vgpu_place there;
	CUmemAllocationProp prop;
	CUdevice device;

	if (real_cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS ||
	    vgpu_place_of_location(&prop.location, &there, &device) != CUDA_SUCCESS)
		return false;
	place->card = there.card;
	*bytes = there.card >= 0 ? vgpu_import_bytes(handle, &prop, device) : 0;
	return true;
}

bool vgpu_descriptor_bytes(int fd, struct vgpu_place *place, uint64_t *bytes)
{
	CUmemGenericAllocationHandle handle;
	int mode = RELAXED; /* a capture must not mind */
	CUresult exchanged = real_cuThreadExchangeStreamCaptureMode(&mode);
	bool known = real_cuMemImportFromShareableHandle(
			 &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
		     CUDA_SUCCESS;

	if (known) {
		known = measure(handle, place, bytes);
		(void)real_cuMemRelease(handle);
	}
	if (exchanged == CUDA_SUCCESS)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
	return known;
}
