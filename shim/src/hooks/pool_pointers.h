/*
 * Allocations of other processes' pools, imported one by one.
 *
 * The importer is charged for each, and its exporter's pool is too, because its allocation is: too
 * much and never too little. They are freed like any memory: the free takes them out, at negligible
 * cost if none was ever imported.
 */
#pragma once

#include "charge/refund.h"

extern uint32_t vgpu_pool_pointers; /* there was one */

/* Around the driver's free, as vgpu_refund_begin and vgpu_refund_end. */
static inline void vgpu_take_pool_pointer(uint64_t address, struct vgpu_charge *imported)
{
	imported->gpu = VGPU_GPU_UNMANAGED;
	if (__atomic_load_n(&vgpu_pool_pointers, __ATOMIC_RELAXED))
		(void)vgpu_refund_begin(VGPU_KIND_IMPORT, address, imported);
}

static inline void vgpu_release_pool_pointer(uint64_t address, const struct vgpu_charge *imported,
					     CUresult driver_result)
{
	if (imported->gpu >= 0)
		vgpu_refund_end(VGPU_KIND_IMPORT, address, imported, driver_result);
}
