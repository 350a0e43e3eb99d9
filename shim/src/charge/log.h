/*
 * The lines that the library may print: one per process.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include "vgpu/region.h"

/* Say on stderr why the GPU is refused, and what to do; the first time only. */
void vgpu_log_refusal(const struct vgpu_error *error);

#endif
