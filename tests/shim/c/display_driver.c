/*
 * A driver with one card that makes contexts for OpenGL and VDPAU, one at a time, and can do
 * nothing in them.
 */
#include <stddef.h>
#include <string.h>

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201 };

static void *current;

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuCtxGetCurrent(void **context);
int cuCtxGetDevice(int *device);
int cuCtxDestroy_v2(void *context);
int cuGLCtxCreate(void **context, unsigned int flags, int device);
int cuGLCtxCreate_v2(void **context, unsigned int flags, int device);
int cuVDPAUCtxCreate(void **context, unsigned int flags, int device, unsigned int display,
		     void *lookup);
int cuVDPAUCtxCreate_v2(void **context, unsigned int flags, int device, unsigned int display,
			void *lookup);

int cuInit(unsigned int flags)
{
	return flags ? INVALID_VALUE : 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	memset(uuid, 0xaa, 16);
	return device ? INVALID_VALUE : 0;
}

int cuCtxGetCurrent(void **context)
{
	*context = current;
	return 0;
}

int cuCtxGetDevice(int *device)
{
	*device = 0;
	return current ? 0 : INVALID_CONTEXT;
}

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
