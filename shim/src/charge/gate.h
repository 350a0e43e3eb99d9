/*
 * Is this process managed, and may it use the GPU? The only door between the wrappers and the
 * grant.
 */
#ifndef VGPU_GATE_H
#define VGPU_GATE_H

enum vgpu_gate {
	VGPU_GATE_OPEN,	   /* no limit was asked for: the driver alone answers */
	VGPU_GATE_MANAGED, /* limits are in force */
	VGPU_GATE_SHUT,	   /* a limit was asked for and cannot be kept; one line says why */
};

/* For what uses the GPU: attaches the process, once. */
enum vgpu_gate vgpu_gate_use(void);

/* For what only looks: takes no slot. */
enum vgpu_gate vgpu_gate_look(void);

#endif
