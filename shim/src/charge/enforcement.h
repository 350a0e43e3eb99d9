/*
 * Whether limits are enforced in this process, and it may use the GPU. The only connection between
 * the hooks and the grant.
 */
#pragma once

enum vgpu_enforcement {
	VGPU_ENFORCEMENT_NONE,	 /* no limit is set: calls reach the driver unchanged */
	VGPU_ENFORCEMENT_ACTIVE, /* limits are in force */
	VGPU_ENFORCEMENT_FAILED, /* a limit is set and cannot be enforced; one line says why */
};

/* For calls that use the GPU: attaches the process, once. */
enum vgpu_enforcement vgpu_enforcement_begin(void);

/* For calls that only query: takes no slot. */
enum vgpu_enforcement vgpu_enforcement_peek(void);
