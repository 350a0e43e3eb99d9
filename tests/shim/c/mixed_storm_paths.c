/* Every way to come by memory of a card; see mixed_storm.c. */
#include "mixed_storm.h"

#include <unistd.h>

#include "nvml_abi.h"

#define BLOCK ((size_t)2 << 20)

enum { PRINTF_FIFO = 1, ROWS = 64 };

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *rows);

CUipcMemHandle peer_handles[PEER_HANDLES];

static const CUmemLocation CARD = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
static const char CODE[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
			   ".visible .entry brief() { ret; }\n";

/* From 1 byte to 64 MiB, every order of magnitude alike. */
static size_t random_size(struct storm *storm)
{
	return 1 + next_random(storm) % (UINT64_C(1) << next_random(storm) % 27);
}

static bool make_linear(struct storm *storm, struct thing *thing)
{
	return FITS(cuMemAlloc_v2((CUdeviceptr *)&thing->first, random_size(storm)));
}

static bool make_pitched(struct storm *storm, struct thing *thing)
{
	size_t pitch;

	return FITS(cuMemAllocPitch_v2((CUdeviceptr *)&thing->first, &pitch,
				       1 + next_random(storm) % 4096, 1 + next_random(storm) % 4096,
				       4));
}

static bool make_managed(struct storm *storm, struct thing *thing)
{
	return FITS(cuMemAllocManaged((CUdeviceptr *)&thing->first, random_size(storm), 1));
}

static void end_linear(struct storm *storm, const struct thing *thing)
{
	(void)storm;
	OK(cuMemFree_v2(thing->first));
}

static bool make_ordered(struct storm *storm, struct thing *thing)
{
	return FITS(
	    cuMemAllocAsync((CUdeviceptr *)&thing->first, random_size(storm), storm->stream));
}

static void end_ordered(struct storm *storm, const struct thing *thing)
{
	if (next_random(storm) % 4 == 0) {
		OK(cuMemFree_v2(thing->first));
		return;
	}
	OK(cuMemFreeAsync(thing->first, storm->stream));
	if (next_random(storm) % 4 == 0)
		OK(cuStreamSynchronize(storm->stream));
}

static bool make_pool(struct storm *storm, struct thing *thing)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = CARD};
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
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = CARD},
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
	if (next_random(storm) % 4 == 0)
		OK(cuDeviceGraphMemTrim(0));
}

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

static bool map_new(struct thing *thing, bool shared)
{
	const CUmemAllocationProp wanted = {
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = 1, .location = CARD};
	const CUmemAccessDesc access = {CARD, CU_MEM_ACCESS_READWRITE};
	CUmemGenericAllocationHandle handle;
	bool mapped;

	if (!FITS(cuMemCreate(&handle, thing->bytes, &wanted, 0)))
		return false;
	mapped = (!shared || pass_on(handle)) &&
		 FITS(cuMemMap(thing->first, thing->bytes, 0, handle, 0));
	if (mapped)
		OK(cuMemSetAccess(thing->first, thing->bytes, &access, 1));
	OK(cuMemRelease(handle));
	return mapped;
}

static bool make_physical(struct storm *storm, struct thing *thing)
{
	thing->bytes = BLOCK * (1 + next_random(storm) % 16);
	OK(cuMemAddressReserve((CUdeviceptr *)&thing->first, thing->bytes, 0, 0, 0));
	if (map_new(thing, next_random(storm) % 2))
		return true;
	OK(cuMemAddressFree(thing->first, thing->bytes));
	return false;
}

static void end_physical(struct storm *storm, const struct thing *thing)
{
	CUmemGenericAllocationHandle handle;

	if (next_random(storm) % 2 &&
	    FITS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)thing->first)))
		OK(cuMemRelease(handle));
	OK(cuMemUnmap(thing->first, thing->bytes));
	OK(cuMemAddressFree(thing->first, thing->bytes));
}

static bool make_array(struct storm *storm, struct thing *thing)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + next_random(storm) % 1024,
					       .Height = 1 + next_random(storm) % 1024,
					       .Depth = next_random(storm) % 8,
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
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + next_random(storm) % 2048,
					       .Height = 1 + next_random(storm) % 2048,
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
					  peer_handles[next_random(storm) % PEER_HANDLES], 1));
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
    {make_linear, end_linear},	   {make_pitched, end_linear},	{make_managed, end_linear},
    {make_ordered, end_ordered},   {make_pool, end_pool},	{make_graph, end_graph},
    {make_physical, end_physical}, {make_array, end_array},	{make_mipmap, end_mipmap},
    {make_opened, end_opened},	   {make_exported, end_linear},
};
const unsigned int path_count = sizeof(paths) / sizeof(*paths);

static void resolve(void)
{
	static const struct {
		const char *name;
		void *wrapper;
	} known[] = {{"cuMemAlloc", (void *)cuMemAlloc_v2},
		     {"cuLaunchKernel", (void *)cuLaunchKernel},
		     {"cuMemCreate", (void *)cuMemCreate},
		     {"cuCtxDestroy", (void *)cuCtxDestroy_v2}};
	void *found;

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		OK(cuGetProcAddress_v2(known[i].name, &found, 13000, 0, NULL));
		MUST(found == known[i].wrapper);
	}
}

void look(void)
{
	size_t free_bytes, total_bytes, card_bytes;
	nvmlProcessInfo_t rows[ROWS];
	unsigned int count = ROWS;
	nvmlDevice_t device;
	nvmlMemory_t memory;

	resolve();
	OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
	OK(cuDeviceTotalMem_v2(&card_bytes, 0));
	MUST(free_bytes <= total_bytes && total_bytes == card_bytes);
	MUST(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	MUST(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	MUST(memory.total == card_bytes && memory.used <= memory.total);
	MUST(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, rows) == NVML_SUCCESS);
}

static void run_code(struct storm *storm)
{
	CUfunction function;
	CUmodule module;

	if (!FITS(cuModuleLoadData(&module, CODE)))
		return;
	if (FITS(cuModuleGetFunction(&function, module, "brief"))) {
		OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, storm->stream, NULL, NULL));
		OK(cuStreamSynchronize(storm->stream));
	}
	OK(cuModuleUnload(module));
}

void live_briefly(struct storm *storm)
{
	struct storm here = {.random = next_random(storm)};
	struct thing left;
	CUcontext context;

	run_code(storm);
	if (!FITS(cuCtxCreate_v4(&context, NULL, 0, 0)))
		return;
	run_code(&here);
	(void)FITS(cuCtxSetLimit(PRINTF_FIFO, BLOCK));
	for (int i = 0; i < 8; i++) {
		(void)make_linear(&here, &left);
		(void)make_array(&here, &left);
	}
	OK(cuCtxDestroy_v2(context));
}
