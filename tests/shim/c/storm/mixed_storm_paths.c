/*
 * Every way to allocate memory of a GPU (see mixed_storm.c).
 *
 * Physical memory is held by a mapping, a multicast object or an import by another interface. It
 * has only one holder here, because memory of an importer and an exporter would be charged twice.
 */
#include "mixed_storm.h"

#include <unistd.h>

#define BLOCK ((size_t)2 << 20)

CUipcMemHandle peer_handles[PEER_HANDLES];

static const CUmemLocation GPU = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

/* Return a size from 1 byte to 64 MiB. Each power of two is equally likely. */
static size_t random_size(void)
{
	return 1 + below(UINT64_C(1) << below(27));
}

bool make_linear(struct thing *thing)
{
	return FITS(cuMemAlloc_v2(&thing->address, random_size()));
}

static bool make_pitched(struct thing *thing)
{
	size_t pitch;

	return FITS(
	    cuMemAllocPitch_v2(&thing->address, &pitch, 1 + below(4096), 1 + below(4096), 4));
}

static bool make_exported(struct thing *thing)
{
	CUipcMemHandle handle;

	if (!make_linear(thing))
		return false;
	OK(cuIpcGetMemHandle(&handle, thing->address));
	return true;
}

void end_linear(const struct thing *thing)
{
	OK(cuMemFree_v2(thing->address));
}

/* Functions that make a single call. */
#define MAKE(name, call)                                                                           \
	static bool make_##name(struct thing *thing)                                               \
	{                                                                                          \
		return FITS(call);                                                                 \
	}
#define END(name, call)                                                                            \
	static void end_##name(const struct thing *thing)                                          \
	{                                                                                          \
		OK(call);                                                                          \
	}

MAKE(managed, cuMemAllocManaged(&thing->address, random_size(), 1))
MAKE(ordered, cuMemAllocAsync(&thing->address, random_size(), stream))
MAKE(opened, cuIpcOpenMemHandle_v2(&thing->address, peer_handles[below(PEER_HANDLES)], 1))
END(opened, cuIpcCloseMemHandle(thing->address))
END(array, cuArrayDestroy(thing->array))
END(mipmap, cuMipmappedArrayDestroy(thing->mipmap))
/* Free the memory at once, or when the stream reaches the free. */
END(plain, below(4) ? cuMemFree_v2(thing->address) : cuMemFreeAsync(thing->address, stream))

static void end_ordered(const struct thing *thing)
{
	if (below(4) == 0) {
		end_linear(thing);
		return;
	}
	OK(cuMemFreeAsync(thing->address, stream));
	if (below(4) == 0)
		OK(cuStreamSynchronize(stream));
}

static bool make_pool(struct thing *thing)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = GPU};
	uint64_t keep_bytes = UINT64_MAX;

	if (!FITS(cuMemPoolCreate(&thing->pool, &properties)))
		return false;
	OK(cuMemPoolSetAttribute(thing->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes));
	if (FITS(cuMemAllocFromPoolAsync(&thing->address, random_size(), thing->pool, stream)))
		return true;
	OK(cuMemPoolDestroy(thing->pool));
	return false;
}

static void end_pool(const struct thing *thing)
{
	end_ordered(thing);
	OK(cuMemPoolTrimTo(thing->pool, 0));
	OK(cuMemPoolDestroy(thing->pool));
}

static bool make_graph(struct thing *thing)
{
	CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = GPU},
	    .bytesize = random_size()};
	CUgraphNode taken, given;
	CUgraph graph;
	bool made;

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&taken, graph, NULL, 0, &wanted));
	OK(cuGraphAddMemFreeNode(&given, graph, &taken, 1, wanted.dptr));
	made = FITS(cuGraphInstantiateWithFlags(&thing->graph, graph, 0));
	OK(cuGraphDestroy(graph));
	if (made && FITS(cuGraphLaunch(thing->graph, stream)))
		OK(cuStreamSynchronize(stream));
	return made;
}

static void end_graph(const struct thing *thing)
{
	OK(cuGraphExecDestroy(thing->graph));
	if (below(4) == 0)
		OK(cuDeviceGraphMemTrim(0));
}

static CUDA_ARRAY3D_DESCRIPTOR random_shape(size_t side_end)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = 1 + below(side_end),
					 .Height = 1 + below(side_end),
					 .Format = 0x20,
					 .NumChannels = 4};
}

bool make_array(struct thing *thing)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = random_shape(1024);

	shape.Depth = below(8);
	return FITS(cuArray3DCreate_v2(&thing->array, &shape));
}

static bool make_mipmap(struct thing *thing)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = random_shape(2048);

	return FITS(cuMipmappedArrayCreate(&thing->mipmap, &shape, 4));
}

static bool create(struct thing *thing, CUmemGenericAllocationHandle *handle)
{
	const CUmemAllocationProp wanted = {
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = 1, .location = GPU};

	thing->bytes = BLOCK * (1 + below(16));
	return FITS(cuMemCreate(handle, thing->bytes, &wanted, 0));
}

/* Export the memory to a descriptor, import it as a second handle, and release this handle. */
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

/* Make physical memory whose only holder is a mapping. */
static bool make_physical(struct thing *thing)
{
	const CUmemAccessDesc access = {GPU, CU_MEM_ACCESS_READWRITE};
	CUmemGenericAllocationHandle handle;
	bool mapped;

	if (!create(thing, &handle))
		return false;
	OK(cuMemAddressReserve(&thing->address, thing->bytes, 0, 0, 0));
	mapped = (below(2) || pass_on(handle)) &&
		 FITS(cuMemMap(thing->address, thing->bytes, 0, handle, 0));
	OK(cuMemRelease(handle));
	OK(mapped ? cuMemSetAccess(thing->address, thing->bytes, &access, 1)
		  : cuMemAddressFree(thing->address, thing->bytes));
	return mapped;
}

static void end_physical(const struct thing *thing)
{
	CUmemGenericAllocationHandle handle;

	if (below(2) &&
	    FITS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)thing->address)))
		OK(cuMemRelease(handle));
	OK(cuMemUnmap(thing->address, thing->bytes));
	OK(cuMemAddressFree(thing->address, thing->bytes));
}

/* Make physical memory whose only holder is a multicast object, which is not mapped. */
static bool make_multicast(struct thing *thing)
{
	CUmulticastObjectProp wanted = {.numDevices = 1};
	CUmemGenericAllocationHandle handle;
	bool bound;

	if (!create(thing, &handle))
		return false;
	wanted.size = thing->bytes;
	OK(cuMulticastCreate(&thing->multicast, &wanted));
	OK(cuMulticastAddDevice(thing->multicast, 0));
	bound = FITS(cuMulticastBindMem(thing->multicast, 0, handle, 0, thing->bytes, 0));
	OK(cuMemRelease(handle));
	if (!bound)
		OK(cuMemRelease(thing->multicast));
	return bound;
}

/* Unbind the memory before the release of the multicast object, or only release the object. */
static void end_multicast(const struct thing *thing)
{
	if (below(2))
		OK(cuMulticastUnbind(thing->multicast, 0, 0, thing->bytes));
	OK(cuMemRelease(thing->multicast));
}

/* If the import succeeds, the driver owns the descriptor. */
static bool import(struct thing *thing, CUmemGenericAllocationHandle handle)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC given = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
						  .size = thing->bytes};

	if (!FITS(cuMemExportToShareableHandle(&given.handle.fd, handle, 1, 0)))
		return false;
	if (FITS(cuImportExternalMemory(&thing->import, &given)))
		return true;
	close(given.handle.fd);
	return false;
}

/* Make an import, an import with a mapped buffer, or a buffer whose import is destroyed. */
static bool make_external(struct thing *thing)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = 0};
	CUmemGenericAllocationHandle handle;
	bool imported;

	if (!create(thing, &handle))
		return false;
	imported = import(thing, handle);
	OK(cuMemRelease(handle));
	whole.size = thing->bytes;
	if (imported && below(2) &&
	    FITS(cuExternalMemoryGetMappedBuffer(&thing->address, thing->import, &whole)) &&
	    below(2)) {
		OK(cuDestroyExternalMemory(thing->import));
		thing->import = NULL;
	}
	return imported;
}

static void end_external(const struct thing *thing)
{
	if (thing->import)
		OK(cuDestroyExternalMemory(thing->import));
	if (thing->address)
		end_linear(thing);
}

const struct path paths[] = {
    {make_linear, end_plain},	   {make_pitched, end_plain},	{make_managed, end_plain},
    {make_ordered, end_ordered},   {make_pool, end_pool},	{make_graph, end_graph},
    {make_physical, end_physical}, {make_array, end_array},	{make_mipmap, end_mipmap},
    {make_opened, end_opened},	   {make_exported, end_linear}, {make_multicast, end_multicast},
    {make_external, end_external},
};
const unsigned int path_count = sizeof(paths) / sizeof(*paths);
