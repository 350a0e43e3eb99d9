/*
 * The first driver call that matters attaches the process; at load time nothing of this happens.
 *
 * Fails closed: where a limit was asked for and grant or region is unusable, cuInit is refused, and
 * with it every use of the GPU. The program lives on, and one that never calls CUDA sees nothing
 * of this.
 */
#include "charge/gate.h"

#include <stdbool.h>

#include "charge/log.h"
#include "vgpu/region.h"

/* The answer is asked for once per process and kept only where it cannot change. */
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
		vgpu_log_refusal(&error);
		return VGPU_GATE_SHUT;
	}
}

enum vgpu_gate vgpu_gate_use(void)
{
	/* On every allocation's way: once attached, without room for an error. */
	return !is_unmanaged() && vgpu_attach(NULL) == VGPU_OK ? VGPU_GATE_MANAGED
							       : gate(vgpu_attach);
}

enum vgpu_gate vgpu_gate_look(void)
{
	return gate(vgpu_peek);
}
