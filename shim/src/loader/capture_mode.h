/* Relaxed capture mode, for the library's own driver calls. Otherwise some of these calls would
 * invalidate a capture that a thread has begun in global mode. */
#pragma once

#include "loader/hooks.h"

enum { VGPU_CAPTURE_MODE_RELAXED = 2, VGPU_CAPTURE_MODE_UNKNOWN = -1 };

/* Enter relaxed mode. Return the mode to pass to vgpu_capture_mode_restore. */
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
