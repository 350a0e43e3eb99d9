/*
 * Wrappers of executable graphs. A graph takes memory for its allocation nodes when it is launched
 * or uploaded, and by then nothing can be undone: so what they come to is added up when the graph
 * is instantiated, and reserved before a launch. Code and local memory are measured when it is
 * instantiated or uploaded, and at its first launch; a table of handles tells the others, and those
 * of which no node runs code.
 */
#include <sys/mman.h>

#include "execs.h"
#include "first.h"
#include "graph_code.h"
#include "hooks.h"
#include "local_memory.h"
#include "location.h"
#include "meter.h"
#include "seen.h"

enum {
	NODE_CHILD = 4,
	NODE_ALLOC = 10,
	DEEPEST_CHILD = 32, /* below it nothing is added up; what is taken is charged after */
	FLAG_UPLOAD = 2,
};

/* Nodes of these types run nothing on the card: calls of the host, none, events, semaphores,
 * allocations, frees. Copies and sets are kernels of the driver's. */
#define WITHOUT_CODE                                                                               \
	(1u << 3 | 1u << 5 | 1u << 6 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << NODE_ALLOC | 1u << 11)

static void add_graph(CUgraph graph, struct vgpu_graph_needs *bounds, int depth);

static void add_alloc(CUgraphNode node, struct vgpu_graph_needs *bounds)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	struct vgpu_place place;

	if (real_cuGraphMemAllocNodeGetParams(node, &parameters) == CUDA_SUCCESS &&
	    vgpu_place_of_pool(&parameters.pool, &place) == CUDA_SUCCESS && place.card >= 0) {
		bounds->cards |= UINT64_C(1) << place.card;
		bounds->bytes[place.card] += vgpu_whole_blocks(place.card, parameters.size_bytes);
	}
}

static void add_node(CUgraphNode node, struct vgpu_graph_needs *bounds, int depth)
{
	CUgraph child;
	int type;

	if (real_cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		type = 0;
	if (type == NODE_ALLOC)
		add_alloc(node, bounds);
	if (type == NODE_CHILD && depth < DEEPEST_CHILD &&
	    real_cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		add_graph(child, bounds, depth + 1);
	else
		bounds->runs_code |= !((unsigned int)type < 32 && WITHOUT_CODE >> type & 1);
}

static void add_graph(CUgraph graph, struct vgpu_graph_needs *bounds, int depth)
{
	CUgraphNode *nodes;
	size_t count = 0, bytes;

	if (real_cuGraphGetNodes(graph, NULL, &count) == CUDA_SUCCESS && !count)
		return;
	bytes = count * sizeof(*nodes);
	nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nodes == MAP_FAILED || real_cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
		bounds->runs_code = true; /* as far as anybody knows */
	else
		for (size_t i = 0; i < count && i < bytes / sizeof(*nodes); i++)
			add_node(nodes[i], bounds, depth);
	if (nodes != MAP_FAILED)
		munmap(nodes, bytes);
}

static bool is_managed(void)
{
	struct vgpu_place place;

	return vgpu_place_of_device(0, &place) == CUDA_SUCCESS && place.card != VGPU_CARD_UNMANAGED;
}

/* The driver made `made`; one that allocates and cannot be written down is not given. */
static CUresult enter(CUresult result, CUgraphExec made, CUgraphExec *exec,
		      const struct vgpu_graph_needs *bounds)
{
	if (result != CUDA_SUCCESS)
		return result;
	(bounds->runs_code ? vgpu_unsee : vgpu_see)(vgpu_exec_key(made));
	if (bounds->cards && !vgpu_execs_put((uint64_t)(uintptr_t)made, bounds)) {
		real_cuGraphExecDestroy(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*exec = made;
	return CUDA_SUCCESS;
}

static struct vgpu_graph_needs bounds_of(CUgraph graph)
{
	struct vgpu_graph_needs bounds = {0};

	if (graph && is_managed())
		add_graph(graph, &bounds, 0);
	else
		bounds.runs_code = true;
	return bounds;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
			    size_t log_bytes)
{
	struct vgpu_graph_needs bounds = bounds_of(graph);
	CUgraphExec made = NULL;
	CUresult result;

	VGPU_CALL_GRAPH_OF(
	    bounds, result,
	    real_cuGraphInstantiate(exec ? &made : NULL, graph, node, log, log_bytes));
	return enter(result, made, exec, &bounds);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
			       size_t log_bytes)
{
	struct vgpu_graph_needs bounds = bounds_of(graph);
	CUgraphExec made = NULL;
	CUresult result;

	VGPU_CALL_GRAPH_OF(
	    bounds, result,
	    real_cuGraphInstantiate_v2(exec ? &made : NULL, graph, node, log, log_bytes));
	return enter(result, made, exec, &bounds);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	struct vgpu_graph_needs bounds = bounds_of(graph);
	CUgraphExec made = NULL;
	CUresult result;

	VGPU_CALL_GRAPH_OF(bounds, result,
			   real_cuGraphInstantiateWithFlags(exec ? &made : NULL, graph, flags));
	return enter(result, made, exec, &bounds);
}

/*
 * A call that may take memory of several cards: their meters one within the other, and within the
 * last the driver. Always in the order of the cards, so that no two calls wait for each other.
 */
struct launch {
	struct vgpu_metered_call call; /* first: a meter hands back what it was given */
	CUresult (*driver)(const struct launch *launch);
	struct vgpu_graph_needs bounds;
	int card; /* the next */
	CUgraphExec *made;
	CUgraph graph;
	CUDA_GRAPH_INSTANTIATE_PARAMS *parameters;
};

static CUresult launch_on_cards(const struct vgpu_metered_call *call)
{
	struct launch next = *(const struct launch *)call;
	struct vgpu_meter *meter;

	while (next.card < VGPU_MOST_CARDS && !(next.bounds.cards & UINT64_C(1) << next.card))
		next.card++;
	if (next.card == VGPU_MOST_CARDS)
		return next.driver(&next);
	meter = vgpu_meter_graphs(next.card++);
	return meter ? vgpu_meter_call(meter, next.bounds.bytes[next.card - 1], &next.call)
		     : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult drive_launch(const struct launch *launch)
{
	return as_cuGraphLaunch(launch->call.twin, launch->call.exec, launch->call.stream);
}

static CUresult drive_upload(const struct launch *launch)
{
	return as_cuGraphUpload(launch->call.twin, launch->call.exec, launch->call.stream);
}

static CUresult drive_instantiate(const struct launch *launch)
{
	return as_cuGraphInstantiateWithParams(launch->call.twin, launch->made, launch->graph,
					       launch->parameters);
}

static CUresult launch_known(struct launch *launch)
{
	CUresult result = launch_on_cards(&launch->call);

	if (result == CUDA_SUCCESS)
		vgpu_execs_launched((uint64_t)(uintptr_t)launch->call.exec, &launch->bounds);
	return result;
}

static CUresult launch_any(struct launch *launch)
{
	return vgpu_execs_find((uint64_t)(uintptr_t)launch->call.exec, &launch->bounds)
		   ? launch_known(launch)
		   : launch->driver(launch);
}

/* In the context of the stream; what is captured runs nothing. */
static __attribute__((noinline, cold)) CUresult launch_first(struct launch *launch, bool runs)
{
	struct vgpu_visit visit = vgpu_visit_stream(launch->call.stream);
	CUresult result;

	VGPU_CALL_GRAPH(result, launch_any(launch));
	if (runs && result == CUDA_SUCCESS && !vgpu_captures(launch->call.capturing))
		vgpu_see(vgpu_exec_key(launch->call.exec));
	vgpu_visit_end(visit);
	return result;
}

CUresult on_cuGraphLaunch(enum vgpu_function real, CUgraphExec exec, CUstream stream)
{
	struct launch launch = {
	    .call = {.take = launch_on_cards,
		     .twin = real,
		     .exec = exec,
		     .stream = stream,
		     .capturing = vgpu_own_stream(real, VGPU_ID_cuGraphLaunch_ptsz, stream)},
	    .driver = drive_launch};

	return vgpu_seen(vgpu_exec_key(exec)) ? launch_any(&launch) : launch_first(&launch, true);
}

CUresult on_cuGraphUpload(enum vgpu_function real, CUgraphExec exec, CUstream stream)
{
	struct launch launch = {
	    .call = {.take = launch_on_cards,
		     .twin = real,
		     .exec = exec,
		     .stream = stream,
		     .capturing = vgpu_own_stream(real, VGPU_ID_cuGraphUpload_ptsz, stream)},
	    .driver = drive_upload};

	return vgpu_seen(vgpu_exec_key(exec)) ? launch_any(&launch) : launch_first(&launch, false);
}

CUresult on_cuGraphInstantiateWithParams(enum vgpu_function real, CUgraphExec *exec, CUgraph graph,
					 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	CUgraphExec made = NULL;
	struct launch launch = {.call = {.take = launch_on_cards, .twin = real},
				.driver = drive_instantiate,
				.bounds = bounds_of(graph),
				.made = exec ? &made : NULL,
				.graph = graph,
				.parameters = parameters};
	bool uploads = parameters && parameters->flags & FLAG_UPLOAD;
	CUresult result;

	if (uploads)
		vgpu_execs_count_trims(&launch.bounds);
	VGPU_CALL_GRAPH_OF(launch.bounds, result,
			   uploads ? launch_on_cards(&launch.call) : drive_instantiate(&launch));
	result = enter(result, made, exec, &launch.bounds);
	if (result == CUDA_SUCCESS && uploads)
		vgpu_execs_launched((uint64_t)(uintptr_t)made, &launch.bounds);
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct vgpu_graph_needs bounds;
	bool known = vgpu_execs_remove((uint64_t)(uintptr_t)exec, &bounds);
	CUresult result;

	vgpu_unsee(vgpu_exec_key(exec));
	result = real_cuGraphExecDestroy(exec);
	if (result != CUDA_SUCCESS && known)
		vgpu_execs_put((uint64_t)(uintptr_t)exec, &bounds);
	vgpu_meters_read();
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct vgpu_place place;
	CUresult result;

	if (vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.card < 0)
		return real_cuDeviceGraphMemTrim(device);
	result = vgpu_trim_graphs(device, place.card);
	vgpu_meters_read();
	return result;
}
