/*
 * The first relevant driver call attaches the process; loading the library does not.
 *
 * Fails closed: if a limit is set and grant or region is unusable, cuInit is refused, and with it
 * every use of the GPU. The program keeps running; one that never calls CUDA is unaffected.
 */
#include "charge/gate.h"

#include <stdbool.h>

#include "vgpu/region.h"

/* Evaluated once per process, and cached only where the result cannot change. */
static bool unmanaged;

static bool is_unmanaged(void)
{
	return __atomic_load_n(&unmanaged, __ATOMIC_RELAXED);
}

static enum vgpu_gate gate(enum vgpu_result (*enter)(struct vgpu_error *))
{
	struct vgpu_error error = {.result = VGPU_OK};

	if (is_unmanaged())
		return VGPU_GATE_OPEN;
	switch (enter(&error)) {
	case VGPU_OK:
		return VGPU_GATE_MANAGED;
	case VGPU_UNMANAGED:
		__atomic_store_n(&unmanaged, true, __ATOMIC_RELAXED);
		return VGPU_GATE_OPEN;
	default:
		vgpu_error_print(&error);
		return VGPU_GATE_SHUT;
	}
}

enum vgpu_gate vgpu_gate_use(void)
{
	/* On the path of every allocation: once attached, no space for an error. */
	return !is_unmanaged() && vgpu_attach(NULL) == VGPU_OK ? VGPU_GATE_MANAGED
							       : gate(vgpu_attach);
}

enum vgpu_gate vgpu_gate_peek(void)
{
	return gate(vgpu_peek);
}
