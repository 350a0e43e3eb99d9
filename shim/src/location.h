/*
 * Whose memory a call takes that names a location.
 */
#ifndef VGPU_LOCATION_H
#define VGPU_LOCATION_H

#include "place.h"
#include "vgpu/cuda_abi.h"

/* Of what is not on a device: VGPU_CARD_UNMANAGED. A device that the driver does not know is the
 * driver's to refuse. */
CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device);

/* Managed memory counts as device memory wherever its pages go; where it prefers no device, as the
 * current one's. */
CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place);

#endif
