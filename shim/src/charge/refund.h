/*
 * Refunds: of frees, and of pools that the program destroys or a reset of the device ends.
 */
#pragma once

#include "charge/admission.h"
#include "charge/meters.h"

/*
 * A free: "begin" takes the charge out of the ledger before the driver frees, because the key may
 * be given to another thread at once; "end" refunds it after, because until then the GPU's memory
 * is held. If the key is unknown here, "end" ignores the charge and only the driver is called.
 */
void vgpu_refund_begin(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
void vgpu_refund_end(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		     CUresult driver_result);

/* The program destroyed the pool: destroy it now, or once nothing of it is in use. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool);

/* The driver has reset the device: its pools no longer exist, including those that the program
 * made. */
void vgpu_meters_forget(CUdevice device);
