/*
 * Whether a description may be one of an array at all, as the driver's own maxima have it.
 *
 * Only in order to let the driver refuse what is none by its own code. True says nothing: the
 * driver may still refuse. Knows the attributes of a device; nothing of charges.
 */
#ifndef VGPU_ARRAY_EXTENTS_H
#define VGPU_ARRAY_EXTENTS_H

#include <stdbool.h>

#include "vgpu/cuda_abi.h"

bool vgpu_array_is_possible(const CUDA_ARRAY3D_DESCRIPTOR *array, CUdevice device);

#endif
