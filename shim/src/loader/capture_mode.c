#include "loader/capture_mode.h"

#include "loader/hooks.h"
#include "os/process_start.h"

enum { RELAXED = 2, UNKNOWN = -1, UNCHANGED = -2, PAUSE_NS = 100000, LONGEST_NS = 1000000000 };

static enum { NO_CAPTURE, HAS_BEGUN, ALL_RELAXED } state;
static uint32_t unchanged_count; /* calls that are now made in the program's mode */

/* A thread counts its call before it reads `state`, and a capture reads the count after it has set
 * `state`. So one of them sees the other. */
int vgpu_capture_mode_relax(void)
{
	int mode = RELAXED;

	__atomic_add_fetch(&unchanged_count, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&state, __ATOMIC_SEQ_CST) == NO_CAPTURE)
		return UNCHANGED;
	__atomic_sub_fetch(&unchanged_count, 1, __ATOMIC_RELEASE);
	return real_cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : UNKNOWN;
}

void vgpu_capture_mode_restore(int mode)
{
	if (mode == UNCHANGED)
		__atomic_sub_fetch(&unchanged_count, 1, __ATOMIC_RELEASE);
	else if (mode != UNKNOWN)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
}

void vgpu_capture_begins(void)
{
	if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == ALL_RELAXED)
		return;
	__atomic_store_n(&state, HAS_BEGUN, __ATOMIC_SEQ_CST);
	for (int i = 0;
	     i < LONGEST_NS / PAUSE_NS && __atomic_load_n(&unchanged_count, __ATOMIC_SEQ_CST); i++)
		vgpu_pause(PAUSE_NS);
	__atomic_store_n(&state, ALL_RELAXED, __ATOMIC_RELEASE);
}
