/*
 * Whether this process is managed and may use the GPU. The only connection between the wrappers and
 * the grant.
 */
#pragma once

enum vgpu_gate {
	VGPU_GATE_OPEN,	   /* no limit is set: calls reach the driver unchanged */
	VGPU_GATE_MANAGED, /* limits are in force */
	VGPU_GATE_SHUT,	   /* a limit is set and cannot be enforced; one line says why */
};

/* For calls that use the GPU: attaches the process, once. */
enum vgpu_gate vgpu_gate_use(void);

/* For calls that only query: takes no slot. */
enum vgpu_gate vgpu_gate_peek(void);
