/*
 * A driver small enough to be built for musl. It has one GPU of 4 GiB. Memory is only a number, and
 * functions that the test does not need are NULL.
 */
#define GPUS 1
#include "small_driver.h"

static unsigned long long used;
static const size_t total = (size_t)4 << 30;

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &used;
	return device != 0;
}

int cuCtxSetCurrent(void *context)
{
	current = context;
	return context != &used;
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
	if (free_bytes)
		*free_bytes = total - used;
	if (total_bytes)
		*total_bytes = total;
	return 0;
}
