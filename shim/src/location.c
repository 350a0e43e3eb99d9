/* See location.h. */
#include "location.h"

#include "hooks.h"

enum { MANAGED = 2 }; /* CU_MEM_ALLOCATION_TYPE_MANAGED */

static bool is_on_device(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
	       location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
}

CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device)
{
	CUuuid uuid;
	CUresult result;

	*place = (struct vgpu_place){.card = VGPU_CARD_UNMANAGED};
	*device = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
		      ? location->id & 0xff
		      : location->id;
	if (!is_on_device(location))
		return CUDA_SUCCESS;
	result = vgpu_place_of_device(*device, place);
	if (result == CUDA_SUCCESS && place->card == VGPU_CARD_NOT_GRANTED &&
	    real_cuDeviceGetUuid(&uuid, *device) != CUDA_SUCCESS)
		place->card = VGPU_CARD_UNMANAGED;
	return result;
}

CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place)
{
	CUdevice device = 0;

	if (properties->allocation_type != MANAGED || is_on_device(&properties->location))
		return vgpu_place_of_location(&properties->location, place, &device);
	(void)real_cuCtxGetDevice(&device); /* without a context: the first */
	return vgpu_place_of_device(device, place);
}
