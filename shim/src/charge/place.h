/*
 * Whose memory a call takes: which GPU of the grant, and which generation of a context.
 *
 * A context's memory ends with it, but its handle may be reused (a primary context's always is): so
 * charges carry the number of one generation of a context (generations.h), and no handle. Uses the
 * driver and the grant, and no charges.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

/*
 * The place of the current context, of a context (NULL: the current one), of a device and of device
 * memory; the last two have context 0. The wrapper returns anything but CUDA_SUCCESS; an unmanaged
 * process succeeds.
 */
CUresult vgpu_place_current(struct vgpu_place *place);
CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place);
CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place);
CUresult vgpu_place_of_address(CUdeviceptr address, struct vgpu_place *place);

/* For memory that is not on a device: VGPU_GPU_UNMANAGED. An unknown device is left to the driver
 * to refuse. */
CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device);

/* Managed memory counts as device memory wherever its pages are; if it prefers no device, as the
 * current one's. */
CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place);

/* Limits from the environment apply to all devices that a program sees, from its start. */
void vgpu_register_devices(void);
