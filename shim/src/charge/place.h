/*
 * The place of memory: on which GPU of the grant it is, and to which context's generation it
 * belongs.
 *
 * A context's memory ends with the context, but the driver may reuse its handle, and always does
 * for a primary context. So charges carry the number of a generation (generations.h), and no
 * handle. These functions use the driver and the grant, and no charges.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

/*
 * The place of the current context, of a context (NULL: the current one), of a device, and of
 * device memory. The last two have context 0. The wrapper returns any result but CUDA_SUCCESS to
 * the program. In an unmanaged process they succeed.
 */
CUresult vgpu_place_current(struct vgpu_place *place);
CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place);
CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place);
CUresult vgpu_place_of_address(CUdeviceptr address, struct vgpu_place *place);

/* The place of a location. Memory that is not on a device is VGPU_GPU_UNMANAGED. So is an unknown
 * device, which the driver will refuse. */
CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device);

/* The place of a pool. Managed memory counts as device memory, wherever its pages are. It counts on
 * its preferred device. If it has none, it counts on the current device. */
CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place);

/* Limits from the environment apply to all devices that a program sees. This enters them all at
 * once. */
void vgpu_register_devices(void);
