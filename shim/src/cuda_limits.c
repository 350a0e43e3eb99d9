/*
 * Limits of a context: room that the driver makes in it and does not say the size of. It is
 * measured, and put back where it does not fit.
 */
#include <stdbool.h>
#include <stddef.h>

#include "hooks.h"
#include "local_memory.h"
#include "measure.h"

enum { LIMIT_STACK, LIMIT_PRINTF, LIMIT_HEAP, LIMIT_SYNC_DEPTH, LIMIT_LAUNCHES };

#define LIMIT_SLACK_BYTES (INT64_C(64) << 20)
#define LIMIT_MOST_BYTES  (INT64_C(1) << 40)

/* What one more of a limit's unit can take: of most a byte, also of those that come to nothing. A
 * level of synchronisation keeps the registers and shared memory of a whole card (NVIDIA has named
 * 150 MiB on small ones), a launch that waits its parameters. */
static const uint64_t unit_bytes[] = {
    [LIMIT_PRINTF] = 1,
    [LIMIT_HEAP] = 1,
    [LIMIT_SYNC_DEPTH] = UINT64_C(512) << 20,
    [LIMIT_LAUNCHES] = UINT64_C(64) << 10,
};

/* A stack is for every thread that the card can run at once. */
static int64_t limit_bytes(int limit, size_t value)
{
	bool counted = limit > LIMIT_STACK && limit <= LIMIT_LAUNCHES;
	uint64_t each = counted ? unit_bytes[limit] : 1;
	unsigned long long bytes;

	if (limit == LIMIT_STACK)
		each = vgpu_resident_threads();
	if (__builtin_mul_overflow(each, value, &bytes) || bytes > LIMIT_MOST_BYTES)
		return LIMIT_MOST_BYTES;
	return (int64_t)bytes + LIMIT_SLACK_BYTES;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct vgpu_window window;
	struct vgpu_bounds bounds;
	size_t before = 0;
	CUresult result;

	(void)real_cuCtxGetLimit(&before, limit);
	bounds = (struct vgpu_bounds){-limit_bytes(limit, before), limit_bytes(limit, value)};
	vgpu_window_open(&window);
	result = real_cuCtxSetLimit(limit, value);
	if (!vgpu_took_too_much(&window, vgpu_window_close(&window, bounds)) ||
	    result != CUDA_SUCCESS)
		return result;
	vgpu_window_open(&window);
	(void)real_cuCtxSetLimit(limit, before);
	bounds = (struct vgpu_bounds){-bounds.most_bytes, 0};
	vgpu_window_close(&window, bounds);
	return CUDA_ERROR_OUT_OF_MEMORY;
}
