/*
 * Whose memory a call takes: which GPU of the grant, and which life of a context.
 *
 * What a context holds goes with it, but its handle may come again (a primary context's always
 * does): so charges carry a number that names one life of a context (lives.h), and no handle. Knows
 * the driver and the grant, and nothing of charges.
 */
#ifndef VGPU_PLACE_H
#define VGPU_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

struct vgpu_place {
	int gpu;	  /* index in the grant, or in its place one of region.h's */
	uint32_t context; /* one life of a context; 0: no context that is known */
};

/*
 * Where the current context, a context (NULL: the current one) and a device lie; a device's place
 * has context 0. What is not CUDA_SUCCESS, the wrapper returns; an unmanaged process succeeds.
 */
CUresult vgpu_place_current(struct vgpu_place *place);
CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place);
CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place);

/* Of what is not on a device: VGPU_GPU_UNMANAGED. A device that the driver does not know is the
 * driver's to refuse. */
CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device);

/* Managed memory counts as device memory wherever its pages go; where it prefers no device, as the
 * current one's. */
CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place);

/* Limits from the environment hold for all the devices that a program sees, from its start. */
void vgpu_meet_devices(void);

#endif
