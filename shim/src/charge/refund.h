/* Refunds after memory is freed, a pool is destroyed, or a device is reset. */
#pragma once

#include "charge/admission.h"
#include "charge/meters.h"

/* vgpu_refund_begin takes the charge out of the ledger before the driver frees the memory, because
 * the driver may give the same address to another thread at once. vgpu_refund_end refunds the
 * charge after the call, because until then the GPU's memory is in use. For an unknown key neither
 * does anything. */
void vgpu_refund_begin(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
void vgpu_refund_end(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		     CUresult driver_result);

/* Destroy a pool for the program: now, or once none of its memory is in use. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool);

/* Forget the device's pools, including those that the program made, after the driver has reset the
 * device. */
void vgpu_meters_forget(CUdevice device);
