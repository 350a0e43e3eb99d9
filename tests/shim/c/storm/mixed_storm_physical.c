/*
 * Physical memory and its holders: mappings, descriptors, multicast objects, imports by another
 * interface's name. Each object is the only holder of its memory, so that it is charged once: an
 * import beside its exporter would be charged for both.
 */
#include "mixed_storm.h"

#include <unistd.h>

static const CUmemLocation GPU = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

/* A second handle of the same memory, by way of a descriptor. */
static bool pass_on(CUmemGenericAllocationHandle handle)
{
	CUmemGenericAllocationHandle imported;
	int fd;
	bool passed;

	if (!FITS(cuMemExportToShareableHandle(&fd, handle, 1, 0)))
		return false;
	passed = FITS(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)fd, 1));
	if (passed)
		OK(cuMemRelease(imported));
	close(fd);
	return passed;
}

static bool create(struct storm *storm, struct thing *thing, CUmemGenericAllocationHandle *handle)
{
	const CUmemAllocationProp wanted = {
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = 1, .location = GPU};

	thing->bytes = BLOCK * (1 + next_random(&storm->random) % 16);
	return FITS(cuMemCreate(handle, thing->bytes, &wanted, 0));
}

/* The mapping is the memory's only holder. */
static bool map_alone(struct thing *thing, CUmemGenericAllocationHandle handle, bool shared)
{
	const CUmemAccessDesc access = {GPU, CU_MEM_ACCESS_READWRITE};
	bool mapped = (!shared || pass_on(handle)) &&
		      FITS(cuMemMap(thing->first, thing->bytes, 0, handle, 0));

	if (mapped)
		OK(cuMemSetAccess(thing->first, thing->bytes, &access, 1));
	OK(cuMemRelease(handle));
	return mapped;
}

bool make_physical(struct storm *storm, struct thing *thing)
{
	CUmemGenericAllocationHandle handle;

	if (!create(storm, thing, &handle))
		return false;
	OK(cuMemAddressReserve((CUdeviceptr *)&thing->first, thing->bytes, 0, 0, 0));
	if (map_alone(thing, handle, next_random(&storm->random) % 2))
		return true;
	OK(cuMemAddressFree(thing->first, thing->bytes));
	return false;
}

void end_physical(struct storm *storm, const struct thing *thing)
{
	CUmemGenericAllocationHandle handle;

	if (next_random(&storm->random) % 2 &&
	    FITS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)thing->first)))
		OK(cuMemRelease(handle));
	OK(cuMemUnmap(thing->first, thing->bytes));
	OK(cuMemAddressFree(thing->first, thing->bytes));
}

/* Bound to an object that is not mapped; the memory's handle is released. */
bool make_multicast(struct storm *storm, struct thing *thing)
{
	CUmulticastObjectProp wanted = {.numDevices = 1};
	CUmemGenericAllocationHandle handle;
	bool bound;

	if (!create(storm, thing, &handle))
		return false;
	wanted.size = thing->bytes;
	OK(cuMulticastCreate((CUmemGenericAllocationHandle *)&thing->first, &wanted));
	OK(cuMulticastAddDevice(thing->first, 0));
	bound = FITS(cuMulticastBindMem(thing->first, 0, handle, 0, thing->bytes, 0));
	OK(cuMemRelease(handle));
	if (!bound)
		OK(cuMemRelease(thing->first));
	return bound;
}

/* Unbound, or ended with its object. */
void end_multicast(struct storm *storm, const struct thing *thing)
{
	if (next_random(&storm->random) % 2)
		OK(cuMulticastUnbind(thing->first, 0, 0, thing->bytes));
	OK(cuMemRelease(thing->first));
}

/* The driver owns the descriptor after an import. */
static bool import(struct thing *thing, CUmemGenericAllocationHandle handle)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC given = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
						  .size = thing->bytes};

	if (!FITS(cuMemExportToShareableHandle(&given.handle.fd, handle, 1, 0)))
		return false;
	if (FITS(cuImportExternalMemory((CUexternalMemory *)&thing->first, &given)))
		return true;
	close(given.handle.fd);
	return false;
}

static bool view(struct thing *thing)
{
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = thing->bytes};

	return FITS(cuExternalMemoryGetMappedBuffer(
	    (CUdeviceptr *)&thing->second, (CUexternalMemory)(uintptr_t)thing->first, &whole));
}

/* An import, a view of one that is still there, or a view alone. */
bool make_external(struct storm *storm, struct thing *thing)
{
	CUmemGenericAllocationHandle handle;
	bool imported;

	if (!create(storm, thing, &handle))
		return false;
	imported = import(thing, handle);
	OK(cuMemRelease(handle));
	if (imported && next_random(&storm->random) % 2 && view(thing) &&
	    next_random(&storm->random) % 2) {
		OK(cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)thing->first));
		thing->first = 0;
	}
	return imported;
}

void end_external(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	if (thing->first)
		OK(cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)thing->first));
	if (thing->second)
		OK(cuMemFree_v2(thing->second));
}
