/*
 * Shared by small drivers as of CUDA 13. There are GPUS GPUs. All bytes of the first one's UUID are
 * 0xaa, of the second one's 0xbb, and so on. A current context lies on the first GPU. There is none
 * at first, unless the driver sets one.
 */
#pragma once

#include <stddef.h>
#include <string.h>

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201 };

static void *current;

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
	*count = GPUS;
	return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	memset(uuid, 0xaa + 0x11 * device, 16);
	return device < 0 || device >= GPUS ? INVALID_VALUE : 0;
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
