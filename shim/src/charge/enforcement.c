/*
 * The first relevant driver call attaches the process; loading the library does not.
 *
 * Fails closed: if a limit is set and grant or region is unusable, cuInit is refused, and with it
 * every use of the GPU. The program keeps running; one that never calls CUDA is unaffected.
 */
#include "charge/enforcement.h"

#include <stdbool.h>

#include "vgpu/region.h"

/* Evaluated once per process, and cached only where the result cannot change. */
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
	/* On the path of every allocation: once attached, no space for an error. */
	return !__atomic_load_n(&unmanaged, __ATOMIC_RELAXED) && vgpu_attach(NULL) == VGPU_OK
		   ? VGPU_ENFORCEMENT_ACTIVE
		   : evaluate(vgpu_attach);
}

enum vgpu_enforcement vgpu_enforcement_peek(void)
{
	return evaluate(vgpu_peek);
}
