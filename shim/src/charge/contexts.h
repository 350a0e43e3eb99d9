/*
 * The charge of a context: what the grant states for one, from its first observation until it has
 * ended; a process's first one on a GPU includes an allowance for code. What a context really takes
 * is measured from outside (docs/memory.md).
 */
#pragma once

#include "charge/admission.h"

/* Before one is created there. After CUDA_SUCCESS vgpu_context_first_used or vgpu_cancel must
 * follow. */
CUresult vgpu_context_reserve(struct vgpu_place place, struct vgpu_reservation *out);

/*
 * The context lies on place->gpu: assign its generation, and charge it if it is new: by the
 * reservation, which ends here, or, if that is NULL, regardless of the limit. `serial`: see
 * vgpu_generation_begin.
 */
void vgpu_context_first_used(CUcontext context, uint32_t serial, struct vgpu_place *place,
			     struct vgpu_reservation *reservation);

/* The driver has ended that generation, and freed all that was allocated in it. */
void vgpu_context_ended(uint32_t generation);

/* The device whose primary context has that generation; negative: none. */
CUdevice vgpu_device_of_primary(uint32_t generation);

/* The driver's own number of a context; 0: it has none. */
uint64_t vgpu_context_driver_id(CUcontext context);
