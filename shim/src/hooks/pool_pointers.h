/*
 * Allocations of pools that processes share: exported by their creator, imported by others.
 *
 * An exported allocation is charged to a shared slot of the container (shared.h), and no longer to
 * its pool's meter, until neither the exporter nor an importer has it. One that no process of the
 * container has exported is charged to its importer. Both are freed like any memory: the free takes
 * them out, at negligible cost if none was ever shared.
 */
#pragma once

#include "charge/admission.h"

struct vgpu_pool_pointer {
	struct vgpu_charge exported, imported;
	struct vgpu_meter *meter; /* of the exported one's pool; NULL: not known */
};

extern uint32_t vgpu_pool_pointers; /* there was one */

/* Around the driver's free, as vgpu_refund_begin and vgpu_refund_end. */
void vgpu_take_known_pool_pointer(uint64_t address, struct vgpu_pool_pointer *pointer);
void vgpu_release_pool_pointer(uint64_t address, const struct vgpu_pool_pointer *pointer,
			       CUresult driver_result);
static inline void vgpu_take_pool_pointer(uint64_t address, struct vgpu_pool_pointer *pointer)
{
	pointer->exported.gpu = pointer->imported.gpu = VGPU_GPU_UNMANAGED;
	if (__atomic_load_n(&vgpu_pool_pointers, __ATOMIC_RELAXED))
		vgpu_take_known_pool_pointer(address, pointer);
}
