/* Whether limits are enforced in this process, and whether it may use the GPU. Hooks learn about
 * the grant only here. */
#pragma once

enum vgpu_enforcement {
	VGPU_ENFORCEMENT_NONE,	 /* no limit is set: calls reach the driver unchanged */
	VGPU_ENFORCEMENT_ACTIVE, /* limits are in force */
	VGPU_ENFORCEMENT_FAILED, /* a limit cannot be enforced; a line on stderr says why */
};

/* For calls that use the GPU. The first call attaches the process. */
enum vgpu_enforcement vgpu_enforcement_begin(void);

/* For calls that only query. Does not attach, and takes no slot. */
enum vgpu_enforcement vgpu_enforcement_peek(void);
