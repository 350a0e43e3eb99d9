/*
 * A driver with one GPU that creates contexts for OpenGL and VDPAU, one at a time, and supports
 * nothing in them.
 */
#define GPUS 1
#include "small_driver.h"

int cuCtxDestroy_v2(void *context)
{
	if (!context || context != current)
		return INVALID_CONTEXT;
	current = NULL;
	return 0;
}

int cuGLCtxCreate_v2(void **context, unsigned int flags, int device)
{
	if (!context || flags || device)
		return INVALID_VALUE;
	*context = current = &current;
	return 0;
}

int cuGLCtxCreate(void **context, unsigned int flags, int device)
{
	return cuGLCtxCreate_v2(context, flags, device);
}

int cuVDPAUCtxCreate_v2(void **context, unsigned int flags, int device, unsigned int display,
			void *lookup)
{
	return display == 7 && lookup ? cuGLCtxCreate_v2(context, flags, device) : INVALID_VALUE;
}

int cuVDPAUCtxCreate(void **context, unsigned int flags, int device, unsigned int display,
		     void *lookup)
{
	return cuVDPAUCtxCreate_v2(context, flags, device, display, lookup);
}
