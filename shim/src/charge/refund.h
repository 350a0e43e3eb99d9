/* Refunds, when memory is freed, a pool is destroyed, or a device is reset. */
#pragma once

#include "charge/admission.h"
#include "charge/meters.h"

/*
 * "begin" takes the charge out of the ledger before the driver frees, because the driver may give
 * the key to another thread at once. "end" refunds it after the call, because until then the GPU's
 * memory is held. If the key is unknown, "end" ignores the charge, and only the driver is called.
 */
void vgpu_refund_begin(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
void vgpu_refund_end(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		     CUresult driver_result);

/* The program destroyed the pool: destroy it now, or once nothing of it is in use. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool);

/* The driver has reset the device: all its pools are gone, including those the program made. */
void vgpu_meters_forget(CUdevice device);
