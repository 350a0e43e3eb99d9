/* Every way to allocate memory of a GPU; see mixed_storm.c, and mixed_storm_physical.c for some. */
#include "mixed_storm.h"

CUipcMemHandle peer_handles[PEER_HANDLES];

static const CUmemLocation GPU = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

/* From 1 byte to 64 MiB, every order of magnitude alike. */
static size_t random_size(struct storm *storm)
{
	return 1 + next_random(&storm->random) % (UINT64_C(1) << next_random(&storm->random) % 27);
}

bool make_linear(struct storm *storm, struct thing *thing)
{
	return FITS(cuMemAlloc_v2((CUdeviceptr *)&thing->first, random_size(storm)));
}

static bool make_pitched(struct storm *storm, struct thing *thing)
{
	size_t pitch;

	return FITS(cuMemAllocPitch_v2((CUdeviceptr *)&thing->first, &pitch,
				       1 + next_random(&storm->random) % 4096,
				       1 + next_random(&storm->random) % 4096, 4));
}

static bool make_managed(struct storm *storm, struct thing *thing)
{
	return FITS(cuMemAllocManaged((CUdeviceptr *)&thing->first, random_size(storm), 1));
}

void end_linear(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	OK(cuMemFree_v2(thing->first));
}

/* At once, or when the stream reaches it. */
static void end_plain(struct storm *storm, const struct thing *thing)
{
	if (next_random(&storm->random) % 4)
		end_linear(storm, thing);
	else
		OK(cuMemFreeAsync(thing->first, storm->stream));
}

static bool make_ordered(struct storm *storm, struct thing *thing)
{
	return FITS(
	    cuMemAllocAsync((CUdeviceptr *)&thing->first, random_size(storm), storm->stream));
}

static void end_ordered(struct storm *storm, const struct thing *thing)
{
	if (next_random(&storm->random) % 4 == 0) {
		OK(cuMemFree_v2(thing->first));
		return;
	}
	OK(cuMemFreeAsync(thing->first, storm->stream));
	if (next_random(&storm->random) % 4 == 0)
		OK(cuStreamSynchronize(storm->stream));
}

static bool make_pool(struct storm *storm, struct thing *thing)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = GPU};
	uint64_t keep_bytes = UINT64_MAX;
	CUmemoryPool pool;

	if (!FITS(cuMemPoolCreate(&pool, &properties)))
		return false;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes));
	thing->second = (uintptr_t)pool;
	if (FITS(cuMemAllocFromPoolAsync((CUdeviceptr *)&thing->first, random_size(storm), pool,
					 storm->stream)))
		return true;
	OK(cuMemPoolDestroy(pool));
	return false;
}

static void end_pool(struct storm *storm, const struct thing *thing)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)thing->second;

	end_ordered(storm, thing);
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemPoolDestroy(pool));
}

static CUgraph scratch_graph(size_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = GPU},
	    .bytesize = bytes};
	CUgraphNode taken, given;
	CUgraph graph;

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&taken, graph, NULL, 0, &wanted));
	OK(cuGraphAddMemFreeNode(&given, graph, &taken, 1, wanted.dptr));
	return graph;
}

static bool make_graph(struct storm *storm, struct thing *thing)
{
	CUgraph graph = scratch_graph(random_size(storm));
	CUgraphExec exec;
	bool made = FITS(cuGraphInstantiateWithFlags(&exec, graph, 0));

	OK(cuGraphDestroy(graph));
	if (!made)
		return false;
	thing->first = (uintptr_t)exec;
	if (FITS(cuGraphLaunch(exec, storm->stream)))
		OK(cuStreamSynchronize(storm->stream));
	return true;
}

static void end_graph(struct storm *storm, const struct thing *thing)
{
	OK(cuGraphExecDestroy((CUgraphExec)(uintptr_t)thing->first));
	if (next_random(&storm->random) % 4 == 0)
		OK(cuDeviceGraphMemTrim(0));
}

bool make_array(struct storm *storm, struct thing *thing)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + next_random(&storm->random) % 1024,
					       .Height = 1 + next_random(&storm->random) % 1024,
					       .Depth = next_random(&storm->random) % 8,
					       .Format = 0x20,
					       .NumChannels = 4};

	return FITS(cuArray3DCreate_v2((CUarray *)&thing->first, &shape));
}

static void end_array(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	OK(cuArrayDestroy((CUarray)(uintptr_t)thing->first));
}

static bool make_mipmap(struct storm *storm, struct thing *thing)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + next_random(&storm->random) % 2048,
					       .Height = 1 + next_random(&storm->random) % 2048,
					       .Format = 0x20,
					       .NumChannels = 4};

	return FITS(cuMipmappedArrayCreate((CUmipmappedArray *)&thing->first, &shape, 4));
}

static void end_mipmap(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	OK(cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)thing->first));
}

static bool make_opened(struct storm *storm, struct thing *thing)
{
	return FITS(cuIpcOpenMemHandle_v2((CUdeviceptr *)&thing->first,
					  peer_handles[next_random(&storm->random) % PEER_HANDLES],
					  1));
}

static void end_opened(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	OK(cuIpcCloseMemHandle(thing->first));
}

static bool make_exported(struct storm *storm, struct thing *thing)
{
	CUipcMemHandle handle;

	if (!make_linear(storm, thing))
		return false;
	OK(cuIpcGetMemHandle(&handle, thing->first));
	return true;
}

const struct path paths[] = {
    {make_linear, end_plain},	   {make_pitched, end_plain},	{make_managed, end_plain},
    {make_ordered, end_ordered},   {make_pool, end_pool},	{make_graph, end_graph},
    {make_physical, end_physical}, {make_array, end_array},	{make_mipmap, end_mipmap},
    {make_opened, end_opened},	   {make_exported, end_linear}, {make_multicast, end_multicast},
    {make_external, end_external},
};
const unsigned int path_count = sizeof(paths) / sizeof(*paths);
