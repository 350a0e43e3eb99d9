/*
 * The charge of a context: the amount in the grant, from the context's first observation to its
 * end. A process's first context on a GPU includes an allowance for code. What contexts really take
 * is measured from outside (docs/memory.md).
 */
#pragma once

#include "charge/admission.h"

/* Call it before a context is created on the GPU. After CUDA_SUCCESS vgpu_context_first_used or
 * vgpu_cancel must follow. */
CUresult vgpu_context_reserve(struct vgpu_place place, struct vgpu_reservation *out);

/*
 * Assign a generation to a context on place->gpu. Charge it if the generation is new: by the
 * reservation, or if that is NULL regardless of the limit. The reservation ends here. `serial`: see
 * vgpu_generation_begin.
 */
void vgpu_context_first_used(CUcontext context, uint32_t serial, struct vgpu_place *place,
			     struct vgpu_reservation *reservation);

/* The driver has ended that generation, and has freed all that was allocated in it. */
void vgpu_context_ended(uint32_t generation);

/* The device whose primary context has that generation. Negative: none has. */
CUdevice vgpu_device_of_primary(uint32_t generation);

/* The driver's own number of a context. 0: the driver does not report one. */
uint64_t vgpu_context_driver_id(CUcontext context);
