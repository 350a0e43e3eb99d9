/*
 * Test points: named places between two steps of a protocol.
 *
 * In the product they compile to nothing. In the test build (VGPU_STEPS) each point calls
 * vgpu_step(), which the test program defines.
 */
#pragma once

enum vgpu_step {
#define STEP(name) VGPU_STEP_##name,
#include "os/steps.def"
	VGPU_CORE_STEP_COUNT,
	VGPU_LAST_CORE_STEP = VGPU_CORE_STEP_COUNT - 1,
#include "os/hook_steps.def"
#undef STEP
	VGPU_STEP_COUNT
};

#ifdef VGPU_STEPS
void vgpu_step(enum vgpu_step step);
#define VGPU_AT(name) vgpu_step(VGPU_STEP_##name)
#else
#define VGPU_AT(name) ((void)0)
#endif
