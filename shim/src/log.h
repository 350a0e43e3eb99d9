/*
 * The lines that the library may print: one per process.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

#include "vgpu/region.h"

/* Say on stderr why the card is refused, and what to do; the first time only. */
void vgpu_log_refusal(const struct vgpu_error *error);

/* At a program's start: that library comes before us in it, and stays there. */
void vgpu_log_passed_by(const char *theirs, const char *ours);

#endif
