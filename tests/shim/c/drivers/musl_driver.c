/*
 * A driver small enough to be built for musl: one GPU of 4 GiB that is the first of the tests'
 * GPUs, and memory that is a number.
 */
#include <stddef.h>
#include <string.h>

static unsigned long long used;
static const size_t total = (size_t)4 << 30;

int cuInit(unsigned flags)
{
	return flags != 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	static const unsigned char first[16] = {0x5e, 0x1f, 0x0a, 0x70, 0, 0, 0x40, 0,
						0x80, 0,    0,	  0,	0, 0, 0,    0xaa};

	memcpy(uuid, first, sizeof(first));
	return device != 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = 0;
	return ordinal != 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &used;
	return device != 0;
}

int cuCtxSetCurrent(void *context)
{
	return context != &used;
}

int cuCtxGetCurrent(void **context)
{
	*context = &used;
	return 0;
}

int cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

int cuMemAlloc_v2(unsigned long long *at, size_t bytes)
{
	*at = (1ull << 40) + used;
	used += bytes;
	return 0;
}

int cuMemFree_v2(unsigned long long at)
{
	return at == 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = total - used;
	*total_bytes = total;
	return 0;
}
