/*
 * A driver whose frees a test controls: it can refuse to free, and it can free by itself, as when a
 * context ends. Addresses start over then.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
	unsigned char bytes[16];
} CUuuid;

enum { INVALID_VALUE = 1, ECC_UNCORRECTABLE = 214, FIRST_ADDRESS = 2 << 20, APART_BYTES = 2 << 20 };

static unsigned int next_address = FIRST_ADDRESS;
static int refuses;

void old_driver_set(int refuses_to_free)
{
	refuses = refuses_to_free;
}

void old_driver_forget(void)
{
	next_address = FIRST_ADDRESS;
}

int cuInit(unsigned int flags)
{
	return flags ? INVALID_VALUE : 0;
}

int cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

int cuDeviceGetUuid_v2(CUuuid *uuid, int device)
{
	memset(uuid->bytes, 0xaa, sizeof(uuid->bytes));
	return device ? INVALID_VALUE : 0;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	*address = next_address;
	next_address += APART_BYTES;
	return bytes ? 0 : INVALID_VALUE;
}

int cuMemFree_v2(unsigned long long address)
{
	if (refuses)
		return ECC_UNCORRECTABLE;
	return address < FIRST_ADDRESS || address >= next_address ? INVALID_VALUE : 0;
}

/* Rows at a greater pitch than current drivers use. */
int cuMemAllocPitch_v2(unsigned long long *address, size_t *pitch, size_t width, size_t height,
		       unsigned int element)
{
	*pitch = (width + 0xffff) & ~(size_t)0xffff;
	return element && height ? cuMemAlloc_v2(address, height) : INVALID_VALUE;
}
