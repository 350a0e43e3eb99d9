/*
 * Driver calls of the library itself must not end a capture that any thread has begun in global
 * mode: they are made in relaxed mode, which applies to the calling thread.
 */
#pragma once

#include "loader/hooks.h"

enum { VGPU_CAPTURE_MODE_RELAXED = 2, VGPU_CAPTURE_MODE_UNKNOWN = -1 };

/* Returns the mode to pass to the end. */
static inline int vgpu_capture_mode_relax(void)
{
	int mode = VGPU_CAPTURE_MODE_RELAXED;

	return real_cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS
		   ? mode
		   : VGPU_CAPTURE_MODE_UNKNOWN;
}

static inline void vgpu_capture_mode_restore(int mode)
{
	if (mode != VGPU_CAPTURE_MODE_UNKNOWN)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
}
