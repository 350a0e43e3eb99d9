/* The charge of a context. It is the amount that the grant states, from the time when the library
 * first sees the context until the context ends. A process's first context on a GPU is also charged
 * for code. What contexts really take is measured from outside (docs/memory.md). */
#pragma once

#include "charge/admission.h"

/* Reserve for a context that will be created. After CUDA_SUCCESS vgpu_context_first_used or
 * vgpu_cancel must follow. */
CUresult vgpu_context_reserve(struct vgpu_place place, struct vgpu_reservation *out);

/* Assign a generation to a context on place->gpu. If the generation is new, charge the context by
 * the reservation, which ends here. If `reservation` is NULL, charge regardless of the limit.
 * vgpu_generation_begin explains `serial`. */
void vgpu_context_first_used(CUcontext context, uint32_t serial, struct vgpu_place *place,
			     struct vgpu_reservation *reservation);

/* Refund everything of that generation, after the driver has ended its context. */
void vgpu_context_ended(uint32_t generation);

/* The device whose primary context has that generation, or a negative number. */
CUdevice vgpu_device_of_primary(uint32_t generation);

/* The driver's own number of a context. 0: the driver does not report one. */
uint64_t vgpu_context_driver_id(CUcontext context);
