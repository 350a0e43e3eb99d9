/*
 * The lines that the library may print: one per process.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include "vgpu/region.h"

/* Print on stderr why the GPU is refused, and the remedy; the first time only. */
void vgpu_log_refusal(const struct vgpu_error *error);

#endif
