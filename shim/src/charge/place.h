/*
 * The place of memory: the GPU that has it, and the generation of the context that owns it.
 *
 * The driver may reuse a context's handle, and always does for a primary context. So a charge names
 * the context by its generation (generations.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

/* The place of the current context, of a context (NULL: the current one), of a device, and of
 * device memory. The last two set place->context to 0. The wrapper returns any result but
 * CUDA_SUCCESS to the program. In a process without limits the functions succeed, with
 * VGPU_GPU_UNMANAGED. */
CUresult vgpu_place_current(struct vgpu_place *place);
CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place);
CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place);
CUresult vgpu_place_of_address(CUdeviceptr address, struct vgpu_place *place);

/* The place of every stream and context, if the program sees one GPU, without a driver call. False:
 * it sees several, or has not used the GPU yet. place->context is 0. A context that the program
 * made without a hooked call is charged at the first call of another function here. */
bool vgpu_place_only(struct vgpu_place *place);

/* The place of a location. The GPU is VGPU_GPU_UNMANAGED if the location is no device, or a device
 * that the driver does not know and will refuse. */
CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device);

/* The place of a pool. Managed memory that is charged counts as device memory wherever its pages
 * are. A pool of managed memory is on its preferred device. If it has none, it is on the current
 * device. */
CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place);

/* Enter all devices that the program sees, if the limits are from the environment. */
void vgpu_register_devices(void);
