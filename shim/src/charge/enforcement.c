/*
 * The first driver call that uses the GPU attaches the process. Loading the library does not.
 *
 * If a limit is set but the grant or the region is unusable, cuInit is refused, and so the process
 * cannot use any GPU. The program keeps running. A program that never calls CUDA is unaffected.
 */
#include "charge/enforcement.h"

#include <stdbool.h>

#include "vgpu/region.h"

/* Set once it is known that no limit is set. No other result is cached, because it may change. */
static bool unmanaged;

static enum vgpu_enforcement evaluate(enum vgpu_result (*enter)(struct vgpu_error *))
{
	struct vgpu_error error = {.result = VGPU_OK};

	if (__atomic_load_n(&unmanaged, __ATOMIC_RELAXED))
		return VGPU_ENFORCEMENT_NONE;
	switch (enter(&error)) {
	case VGPU_OK:
		return VGPU_ENFORCEMENT_ACTIVE;
	case VGPU_UNMANAGED:
		__atomic_store_n(&unmanaged, true, __ATOMIC_RELAXED);
		return VGPU_ENFORCEMENT_NONE;
	default:
		vgpu_error_print(&error);
		return VGPU_ENFORCEMENT_FAILED;
	}
}

enum vgpu_enforcement vgpu_enforcement_begin(void)
{
	/* For an attached process this is fast, because no error is on the stack. */
	return !__atomic_load_n(&unmanaged, __ATOMIC_RELAXED) && vgpu_attach(NULL) == VGPU_OK
		   ? VGPU_ENFORCEMENT_ACTIVE
		   : evaluate(vgpu_attach);
}

enum vgpu_enforcement vgpu_enforcement_peek(void)
{
	return evaluate(vgpu_peek);
}
