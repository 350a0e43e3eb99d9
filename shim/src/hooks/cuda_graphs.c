/*
 * Wrappers of executable graphs. A launch or upload takes memory for the graph's allocation nodes,
 * and cannot be undone. So the sum of the nodes' sizes is computed when the graph is instantiated,
 * and reserved before each launch. If a graph has no such nodes, a launch costs one table lookup,
 * and is never refused.
 */
#include <sys/mman.h>

#include "charge/device_memory.h"
#include "charge/meters.h"
#include "charge/place.h"
#include "compute/launch.h"
#include "ledger/executable_graphs.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

enum {
	NODE_CHILD = 4,
	NODE_ALLOC = 10,
	DEEPEST_CHILD = 32, /* nodes in deeper child graphs are charged only after the launch */
	FLAG_UPLOAD = 2,
};

static void add_graph(CUgraph graph, struct vgpu_graph_needs *needs, int depth);

static void add_alloc(CUgraphNode node, struct vgpu_graph_needs *needs)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	struct vgpu_place place;

	if (real_cuGraphMemAllocNodeGetParams(node, &parameters) == CUDA_SUCCESS &&
	    vgpu_place_of_pool(&parameters.pool, &place) == CUDA_SUCCESS && place.gpu >= 0) {
		needs->gpus |= UINT64_C(1) << place.gpu;
		needs->bytes[place.gpu] += vgpu_whole_blocks(place.gpu, parameters.size_bytes);
	}
}

static void add_node(CUgraphNode node, struct vgpu_graph_needs *needs, int depth)
{
	CUgraph child;
	int type;

	if (real_cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return;
	if (type == NODE_ALLOC)
		add_alloc(node, needs);
	else if (type == NODE_CHILD && depth < DEEPEST_CHILD &&
		 real_cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		add_graph(child, needs, depth + 1);
}

static void add_graph(CUgraph graph, struct vgpu_graph_needs *needs, int depth)
{
	CUgraphNode *nodes;
	size_t count = 0, bytes;

	if (real_cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return;
	bytes = count * sizeof(*nodes);
	nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nodes == MAP_FAILED)
		return;
	if (real_cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count && i < bytes / sizeof(*nodes); i++)
			add_node(nodes[i], needs, depth);
	munmap(nodes, bytes);
}

static struct vgpu_graph_needs needs_of(CUgraph graph)
{
	struct vgpu_graph_needs needs = {0};
	struct vgpu_place place;

	if (graph && vgpu_place_of_device(0, &place) == CUDA_SUCCESS &&
	    place.gpu != VGPU_GPU_UNMANAGED)
		add_graph(graph, &needs, 0);
	return needs;
}

/* Enter the new graph `made`, and return it in `*exec`. If it allocates but the table is full,
 * destroy it. */
static CUresult enter(CUresult result, CUgraphExec made, CUgraphExec *exec,
		      const struct vgpu_graph_needs *needs)
{
	if (result != CUDA_SUCCESS)
		return result;
	if (needs->gpus && !vgpu_executable_graphs_put((uintptr_t)made, needs)) {
		real_cuGraphExecDestroy(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*exec = made;
	return CUDA_SUCCESS;
}

#define INSTANTIATING(symbol, params, args)                                                        \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_graph_needs needs = needs_of(graph);                                   \
		CUgraphExec made = NULL, *into = exec ? &made : NULL;                              \
		CUresult result = real_##symbol args;                                              \
                                                                                                   \
		return enter(result, made, exec, &needs);                                          \
	}

INSTANTIATING(cuGraphInstantiate,
	      (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
	      (into, graph, node, log, log_bytes))
INSTANTIATING(cuGraphInstantiate_v2,
	      (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
	      (into, graph, node, log, log_bytes))
INSTANTIATING(cuGraphInstantiateWithFlags,
	      (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (into, graph, flags))

/* The growth of graph memory that one call may cause, for each GPU of the graph. */
struct growths {
	struct vgpu_growth of[VGPU_ENVIRONMENT_MAX_GPUS];
	int count;
};

static void end_growths(struct growths *growths)
{
	while (growths->count)
		(void)vgpu_growth_end(&growths->of[--growths->count]);
}

static CUresult begin_growths(struct growths *growths, const struct vgpu_graph_needs *needs,
			      CUstream capturing)
{
	CUresult result = CUDA_SUCCESS;

	growths->count = 0;
	for (int gpu = 0; result == CUDA_SUCCESS && gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++) {
		struct vgpu_meter *meter;

		if (!(needs->gpus & UINT64_C(1) << gpu))
			continue;
		meter = vgpu_meter_graphs(gpu);
		result = meter ? vgpu_growth_begin(meter, needs->bytes[gpu], capturing,
						   &growths->of[growths->count])
			       : CUDA_ERROR_OUT_OF_MEMORY;
		growths->count += result == CUDA_SUCCESS;
	}
	if (result != CUDA_SUCCESS)
		end_growths(growths);
	return result;
}

/* `result = call`, for an executable graph that allocates. If the memory of its nodes does not fit,
 * `result` is an error, and the call is not made. */
#define CALL_ALLOCATING(result, needs, capturing, call)                                            \
	do {                                                                                       \
		struct growths growths_;                                                           \
		(result) = begin_growths(&growths_, needs, capturing);                             \
		if ((result) != CUDA_SUCCESS)                                                      \
			break;                                                                     \
		(result) = (call);                                                                 \
		end_growths(&growths_);                                                            \
	} while (0)

/* Launch or upload. `own` is the result of vgpu_own_stream for `stream`. */
static CUresult submit(CUresult (*driver)(enum vgpu_function, CUgraphExec, CUstream),
		       enum vgpu_function real, CUgraphExec exec, CUstream stream, CUstream own)
{
	struct vgpu_graph_needs needs;
	CUresult result;

	if (!vgpu_executable_graphs_find((uintptr_t)exec, &needs))
		return driver(real, exec, stream);
	CALL_ALLOCATING(result, &needs, own, driver(real, exec, stream));
	if (result == CUDA_SUCCESS)
		vgpu_executable_graphs_launched((uintptr_t)exec, &needs);
	return result;
}

/* The wait for the container's window comes before the reservation of memory. */
CUresult on_cuGraphLaunch(enum vgpu_function real, CUgraphExec exec, CUstream stream)
{
	CUstream own = vgpu_own_stream(stream, real == VGPU_ID_cuGraphLaunch_ptsz);
	struct vgpu_launch launch;
	CUresult result;

	vgpu_launch_begin(&launch, own, (uint64_t)(uintptr_t)exec, 0);
	result = submit(as_cuGraphLaunch, real, exec, stream, own);
	vgpu_launch_end(&launch);
	return result;
}

CUresult on_cuGraphUpload(enum vgpu_function real, CUgraphExec exec, CUstream stream)
{
	return submit(as_cuGraphUpload, real, exec, stream,
		      vgpu_own_stream(stream, real == VGPU_ID_cuGraphUpload_ptsz));
}

CUresult on_cuGraphInstantiateWithParams(enum vgpu_function real, CUgraphExec *exec, CUgraph graph,
					 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	struct vgpu_graph_needs needs = needs_of(graph);
	CUgraphExec made = NULL, *into = exec ? &made : NULL;
	bool uploads = parameters && parameters->flags & FLAG_UPLOAD && needs.gpus;
	CUresult result;

	if (uploads) {
		vgpu_executable_graphs_count_trims(&needs);
		CALL_ALLOCATING(result, &needs, NULL,
				as_cuGraphInstantiateWithParams(real, into, graph, parameters));
	} else {
		result = as_cuGraphInstantiateWithParams(real, into, graph, parameters);
	}
	result = enter(result, made, exec, &needs);
	if (result == CUDA_SUCCESS && uploads)
		vgpu_executable_graphs_launched((uintptr_t)made, &needs);
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct vgpu_graph_needs needs;
	bool known = vgpu_executable_graphs_remove((uintptr_t)exec, &needs);
	CUresult result = real_cuGraphExecDestroy(exec);

	if (result != CUDA_SUCCESS && known)
		vgpu_executable_graphs_put((uintptr_t)exec, &needs);
	vgpu_meters_read(NULL);
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct vgpu_place place;
	CUresult result;

	if (vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.gpu < 0)
		return real_cuDeviceGraphMemTrim(device);
	result = vgpu_trim_graphs(device, place.gpu);
	vgpu_meters_read(NULL);
	return result;
}
