/*
 * The common part of small CUDA 13 drivers. The macro GPUS is the number of GPUs. All bytes of the
 * first GPU's UUID are 0xaa, of the second GPU's UUID 0xbb, and so on. `current` is the context of
 * all threads, on the first GPU.
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
