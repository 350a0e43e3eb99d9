/*
 * Pinned host memory, which the driver allocated or a program registered. It consists of ordinary
 * pages that the GPU could access at the same address. It belongs to the process and takes no GPU
 * memory.
 */
#define _GNU_SOURCE
#include "base/driver.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct pinned {
	char *base;
	size_t bytes;
	bool registered; /* the program's own pages */
} *pinned;
static size_t pinned_count;

static struct pinned *find(const void *address)
{
	for (size_t i = 0; i < pinned_count; i++)
		if ((uintptr_t)address - (uintptr_t)pinned[i].base < pinned[i].bytes)
			return &pinned[i];
	return NULL;
}

bool host_find(const void *address, void **base, size_t *bytes)
{
	const struct pinned *found = find(address);

	if (!found)
		return false;
	*base = found->base;
	*bytes = found->bytes;
	return true;
}

/* Adds pages to the table. */
static void enter(char *base, size_t bytes, bool registered)
{
	pinned = grow(pinned, pinned_count, sizeof(*pinned));
	pinned[pinned_count++] = (struct pinned){base, bytes, registered};
}

static CUresult allocate(void **out, size_t bytes)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	enter(base, bytes, false);
	*out = base;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	struct context *context;

	TRY(context_enter(NULL, &context));
	if (!out || !bytes || flags & ~(unsigned int)CU_MEMHOSTALLOC_FLAGS_MASK)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(allocate(out, bytes));
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
	return cuMemHostAlloc(out, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemAllocHost(void **out, unsigned int bytes)
{
	return cuMemAllocHost_v2(out, bytes);
}

CUresult cuMemFreeHost(void *address)
{
	struct pinned *found;

	TRY(driver_enter());
	found = find(address);
	if (!found || found->base != address || found->registered)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	munmap(found->base, found->bytes);
	*found = pinned[--pinned_count];
	return driver_leave(CUDA_SUCCESS);
}

static bool overlaps(const char *base, size_t bytes)
{
	for (size_t i = 0; i < pinned_count; i++)
		if ((uintptr_t)base < (uintptr_t)pinned[i].base + pinned[i].bytes &&
		    (uintptr_t)pinned[i].base < (uintptr_t)base + bytes)
			return true;
	return false;
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
	struct context *context;

	TRY(context_enter(NULL, &context));
	if (!address || !bytes || flags & ~(unsigned int)CU_MEMHOSTREGISTER_FLAGS_MASK)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (overlaps(address, bytes))
		return driver_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	enter(address, bytes, true);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *address)
{
	struct context *context;
	struct pinned *found;

	TRY(context_enter(NULL, &context));
	found = find(address);
	if (!address)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!found || found->base != address || !found->registered)
		return driver_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	*found = pinned[--pinned_count];
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned int flags)
{
	TRY(driver_enter());
	if (!out || flags || !find(address))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUdeviceptr)(uintptr_t)address;
	return driver_leave(CUDA_SUCCESS);
}
