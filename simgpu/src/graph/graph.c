/*
 * Graphs and their nodes, before they run. A child graph is moved into its parent, because copies
 * of graphs are not simulated.
 */
#include "graph/graph.h"
#include "module/module.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void)
{
	return object_new(OBJECT_GRAPH, sizeof(struct graph));
}

void graph_free(struct graph *graph)
{
	for (size_t i = 0; i < graph->count; i++) {
		struct node *node = graph->nodes[i];

		if (node->memory)
			graph_memory_release(node->memory);
		if (node->child)
			graph_free(node->child);
		object_free(node);
	}
	if (graph->exec)
		graph->exec->source = NULL;
	free(graph->nodes);
	object_free(graph);
}

bool graph_has_memory(const struct graph *graph)
{
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->memory ||
		    (graph->nodes[i]->child && graph_has_memory(graph->nodes[i]->child)))
			return true;
	return false;
}

struct node *graph_add(struct graph *graph, int type)
{
	struct node *node = object_new(OBJECT_NODE, sizeof(*node));

	node->graph = graph;
	node->type = type;
	graph->nodes = grow(graph->nodes, graph->count, sizeof(*graph->nodes));
	graph->nodes[graph->count++] = node;
	return node;
}

CUresult graph_add_alloc(struct graph *graph, struct device *device, uint64_t bytes,
			 struct node **out)
{
	struct graph_memory *memory = graph_memory_new(device, bytes);

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	(*out)->memory = memory;
	return CUDA_SUCCESS;
}

static bool allocates(const struct graph *graph, const struct graph_memory *memory)
{
	for (size_t i = 0; i < graph->count; i++)
		if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		    graph->nodes[i]->memory == memory)
			return true;
	return false;
}

CUresult graph_add_free(struct graph *graph, uint64_t address, struct node **out)
{
	struct device *device;
	struct range *range = memory_find(address, &device);

	if (!range || !range->graph || range->base != address || range->graph->freed_inside)
		return CUDA_ERROR_INVALID_VALUE;
	*out = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
	(*out)->memory = range->graph;
	range->graph->users++;
	range->graph->freed_inside = allocates(graph, range->graph);
	return CUDA_SUCCESS;
}

static CUresult enter(CUgraph handle, struct graph **graph)
{
	TRY(driver_enter());
	*graph = object_get(handle, OBJECT_GRAPH);
	return *graph ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	TRY(driver_enter());
	if (!out || flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(graph_new());
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph handle)
{
	struct graph *graph;

	TRY(enter(handle, &graph));
	if (graph->owned)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	graph_free(graph);
	return driver_leave(CUDA_SUCCESS);
}

/* The arguments that all functions for adding a node share. */
struct addition {
	CUgraphNode *out;
	CUgraph graph;
	const CUgraphNode *after;
	size_t count;
};

static CUresult begin(const struct addition *add, struct graph **graph)
{
	TRY(enter(add->graph, graph));
	if (!add->out || (add->count && !add->after))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < add->count; i++) {
		const struct node *node = object_get(add->after[i], OBJECT_NODE);

		if (!node || node->graph != *graph)
			return driver_leave(CUDA_ERROR_INVALID_VALUE);
	}
	return CUDA_SUCCESS;
}

static CUresult finish(const struct addition *add, struct node *node)
{
	*add->out = object_handle(node);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph handle, const CUgraphNode *after,
				 size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct addition add = {out, handle, after, count};
	struct graph *graph;
	struct node *node;

	TRY(begin(&add, &graph));
	if (!parameters || !function_get(kernel_work(parameters).function))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	node = graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL);
	node->work = kernel_work(parameters);
	return finish(&add, node);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *after,
				size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	struct addition add = {out, handle, after, count};
	struct device *device;
	struct graph *graph;
	struct node *node;

	TRY(begin(&add, &graph));
	if (!parameters || !parameters->bytesize || parameters->poolProps.handleTypes ||
	    parameters->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    device_get(parameters->poolProps.location.id, &device) != CUDA_SUCCESS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (parameters->bytesize > device->gpu->memory_bytes)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	TRY_LOCKED(graph_add_alloc(graph, device, parameters->bytesize, &node));
	parameters->dptr = node->memory->range->base;
	return finish(&add, node);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *after,
			       size_t count, CUdeviceptr address)
{
	struct addition add = {out, handle, after, count};
	struct graph *graph;
	struct node *node;

	TRY(begin(&add, &graph));
	TRY_LOCKED(graph_add_free(graph, address, &node));
	return finish(&add, node);
}

/* Adds only child graphs. Each other type of node has its own function. */
CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph handle, const CUgraphNode *after,
			   const void *edges, size_t count, CUgraphNodeParams *parameters)
{
	struct addition add = {out, handle, after, count};
	struct graph *graph, *child;
	struct node *node;

	(void)edges;
	TRY(begin(&add, &graph));
	if (!parameters || parameters->type != CU_GRAPH_NODE_TYPE_GRAPH ||
	    parameters->ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	child = object_get(parameters->graph, OBJECT_GRAPH);
	if (!child || child == graph || child->owned)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	node = graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH);
	node->child = child;
	child->owned = true;
	return finish(&add, node);
}

/* As documented, returns the number of nodes if `nodes` is NULL. Unused elements become NULL. */
CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
	struct graph *graph;

	TRY(enter(handle, &graph));
	if (!count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; nodes && i < *count; i++)
		nodes[i] = i < graph->count ? object_handle(graph->nodes[i]) : NULL;
	if (!nodes || *count > graph->count)
		*count = graph->count;
	return driver_leave(CUDA_SUCCESS);
}

static CUresult enter_node(CUgraphNode handle, struct node **node)
{
	TRY(driver_enter());
	*node = object_get(handle, OBJECT_NODE);
	return *node ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, int *type)
{
	struct node *node;

	TRY(enter_node(handle, &node));
	if (!type)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*type = node->type;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out)
{
	struct node *node;

	TRY(enter_node(handle, &node));
	if (!out || !node->child)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(node->child);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
	struct node *node;

	TRY(enter_node(handle, &node));
	if (!out || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUDA_MEM_ALLOC_NODE_PARAMS){
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			  .location = {CU_MEM_LOCATION_TYPE_DEVICE, node->memory->device->ordinal}},
	    .bytesize = node->memory->range->bytes,
	    .dptr = node->memory->range->base};
	return driver_leave(CUDA_SUCCESS);
}
