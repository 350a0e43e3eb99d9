/*
 * A driver that is legal and unusual: its cuGetProcAddress returns inner functions, not its
 * exports, others for the per-thread default stream, and its entries call each other by their
 * exported names, so that these calls pass any interposer. Every memory call returns a number that
 * identifies the function called; nothing is allocated.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { EXPORTED = 901, INNER = 902, INNER_PER_THREAD = 903, INNER_OLD = 904 };

int cuInit(unsigned int flags)
{
	return (int)flags;
}

int cuMemFree_v2(unsigned long long dptr)
{
	return dptr ? EXPORTED : 0;
}

int cuMemFree(unsigned int dptr)
{
	return dptr ? EXPORTED : 0;
}

static int inner_free(unsigned long long dptr)
{
	return dptr ? INNER : 0;
}

static int inner_free_per_thread(unsigned long long dptr)
{
	return dptr ? INNER_PER_THREAD : 0;
}

static int inner_free_old(unsigned int dptr)
{
	return dptr ? INNER_OLD : 0;
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	*pfn = NULL;
	if (strcmp(symbol, "cuMemFree") == 0)
		*pfn = version < 3020 ? (void *)inner_free_old
		       : flags == 2   ? (void *)inner_free_per_thread
				      : (void *)inner_free;
	return *pfn ? 0 : 500;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	int result = cuGetProcAddress(symbol, pfn, version, flags);

	if (status)
		*status = result != 0;
	return result;
}
