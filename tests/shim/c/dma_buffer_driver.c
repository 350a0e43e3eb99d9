/*
 * A driver with one card whose physical memory can be made, mapped and handed out as a DMA buffer,
 * of one file each. How much there is, nobody asks: it keeps no account.
 */
#define CARDS 1
#include "small_driver.h"

#include <sys/mman.h>

enum { DMA_BUFFER = 1, GRANULE_BYTES = 2 << 20 };

static void *current = &current;

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option);
int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties,
		unsigned long long flags);
int cuMemRelease(unsigned long long handle);
int cuMemMap(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
	     unsigned long long flags);
int cuMemUnmap(unsigned long long address, size_t bytes);
int cuMemGetHandleForAddressRange(int *handle, unsigned long long address, size_t bytes, int type,
				  unsigned long long flags);

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
	*bytes = GRANULE_BYTES;
	return properties && !option ? 0 : INVALID_VALUE;
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties,
		unsigned long long flags)
{
	static unsigned long long last;

	if (!properties || bytes % GRANULE_BYTES || flags)
		return INVALID_VALUE;
	*handle = ++last;
	return 0;
}

int cuMemRelease(unsigned long long handle)
{
	return handle ? 0 : INVALID_VALUE;
}

int cuMemMap(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
	     unsigned long long flags)
{
	return address && bytes && !offset && handle && !flags ? 0 : INVALID_VALUE;
}

int cuMemUnmap(unsigned long long address, size_t bytes)
{
	return address && bytes ? 0 : INVALID_VALUE;
}

int cuMemGetHandleForAddressRange(int *handle, unsigned long long address, size_t bytes, int type,
				  unsigned long long flags)
{
	if (!address || !bytes || type != DMA_BUFFER || flags)
		return INVALID_VALUE;
	*handle = memfd_create("dma buffer", MFD_CLOEXEC);
	return *handle < 0 ? INVALID_VALUE : 0;
}
