/* Whether limits are enforced in this process, and whether the process may use the GPU. */
#pragma once

enum vgpu_enforcement {
	VGPU_ENFORCEMENT_NONE,	 /* no limit is set: calls reach the driver unchanged */
	VGPU_ENFORCEMENT_ACTIVE, /* limits are in force */
	VGPU_ENFORCEMENT_FAILED, /* a limit cannot be enforced; a line on stderr says why */
};

/* Called by hooks that use the GPU. The first call attaches the process. */
enum vgpu_enforcement vgpu_enforcement_begin(void);

/* Called by hooks that only query. It does not attach the process, and takes no slot. */
enum vgpu_enforcement vgpu_enforcement_peek(void);
