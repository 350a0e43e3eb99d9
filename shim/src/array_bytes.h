/*
 * How much of a card an array takes, from its description alone.
 *
 * Arithmetic; knows no driver. Used where the driver does not tell: see cuda_arrays.c.
 */
#ifndef VGPU_ARRAY_BYTES_H
#define VGPU_ARRAY_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* UINT64_MAX where no card has that much; of what is no array, whatever the arithmetic gives. */
uint64_t vgpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels);

bool vgpu_array_format_is_known(int format);

#endif
