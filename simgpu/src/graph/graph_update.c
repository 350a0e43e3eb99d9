/*
 * Replacing kernels of a node, or of an executable graph, without making it anew.
 *
 * An executable graph keeps its order: an update replaces the kernels of its steps, one for one,
 * and one that would change anything else is refused.
 */
#include <stddef.h>
#include <string.h>

#include "graph/graph.h"

enum { UPDATE_ERROR = 1, UPDATE_TOPOLOGY_CHANGED = 2 };

static CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS *narrow)
{
	CUDA_KERNEL_NODE_PARAMS wide = {0};

	memcpy(&wide, narrow, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return wide;
}

static CUresult enter_node(CUgraphNode handle, const void *parameters, struct node **node)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*node = object_get(handle, OBJECT_NODE);
	return *node && parameters && (*node)->type == CU_GRAPH_NODE_TYPE_KERNEL
		   ? CUDA_SUCCESS
		   : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *out)
{
	struct node *node;
	CUresult result = enter_node(handle, out, &node);

	if (result != CUDA_SUCCESS)
		return result;
	*out = node->work.kernel;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *out)
{
	CUDA_KERNEL_NODE_PARAMS wide;
	CUresult result = cuGraphKernelNodeGetParams_v2(handle, out ? &wide : NULL);

	if (result == CUDA_SUCCESS)
		memcpy(out, &wide, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return result;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
				       const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct node *node;
	CUresult result = enter_node(handle, parameters, &node);

	if (result != CUDA_SUCCESS)
		return result;
	result = graph_kernel_reached(parameters, LOAD_AT_NODE);
	if (result == CUDA_SUCCESS)
		node->work.kernel = *parameters;
	return driver_leave(result);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	if (parameters)
		wide = widened(parameters);
	return cuGraphKernelNodeSetParams_v2(handle, parameters ? &wide : NULL);
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams *parameters)
{
	if (!parameters || parameters->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return parameters ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	return cuGraphKernelNodeSetParams_v2(handle, &parameters->of.kernel);
}

/* With the lock. */
static struct step *step_of(struct exec *exec, CUgraphNode node)
{
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].node == node)
			return &exec->steps[i];
	return NULL;
}

static CUresult enter_exec(CUgraphExec handle, struct exec **exec)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*exec = object_get(handle, OBJECT_EXEC);
	return *exec ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
					   const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct exec *exec;
	struct step *step;
	CUresult result = enter_exec(handle, &exec);

	if (result != CUDA_SUCCESS)
		return result;
	step = step_of(exec, node);
	if (!step || step->type != CU_GRAPH_NODE_TYPE_KERNEL || !parameters)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = graph_kernel_reached(parameters, LOAD_AT_INSTANTIATE);
	if (result == CUDA_SUCCESS)
		step->work.kernel = *parameters;
	return driver_leave(result);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	CUDA_KERNEL_NODE_PARAMS wide;

	if (parameters)
		wide = widened(parameters);
	return cuGraphExecKernelNodeSetParams_v2(exec, node, parameters ? &wide : NULL);
}

/* `graph` for the steps from `at` on; NULL if they are not part of it. */
static struct step *replace(struct step *at, const struct step *end, const struct graph *graph,
			    CUresult *result)
{
	for (size_t i = 0; at && i < graph->count; i++) {
		const struct node *node = graph->nodes[i];

		if (node->child) {
			at = replace(at, end, node->child, result);
			continue;
		}
		if (at == end || at->type != node->type)
			return NULL;
		if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
			*result = graph_kernel_reached(&node->work.kernel, LOAD_AT_INSTANTIATE);
			if (*result != CUDA_SUCCESS)
				return NULL;
		}
		at->work = node->work;
		at++;
	}
	return at;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node_handle,
					    CUgraph child_handle)
{
	const struct graph *child;
	const struct node *node;
	struct exec *exec;
	struct step *first = NULL;
	CUresult result = enter_exec(handle, &exec);

	if (result != CUDA_SUCCESS)
		return result;
	child = object_get(child_handle, OBJECT_GRAPH);
	node = object_get(node_handle, OBJECT_NODE);
	if (child && node && node->child && node->child->count)
		first = step_of(exec, object_handle(node->child->nodes[0]));
	if (!first || !replace(first, first + node->child->count, child, &result))
		result = result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	return driver_leave(result);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters)
{
	switch (parameters ? parameters->type : -1) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return cuGraphExecKernelNodeSetParams_v2(exec, node, &parameters->of.kernel);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return cuGraphExecChildGraphNodeSetParams(exec, node, parameters->of.graph.graph);
	case -1:
		return CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
			      CUgraphExecUpdateResultInfo *info)
{
	const struct graph *graph;
	struct exec *exec;
	const struct step *end;
	CUresult result = enter_exec(handle, &exec);

	if (result != CUDA_SUCCESS)
		return result;
	graph = object_get(graph_handle, OBJECT_GRAPH);
	if (!graph || !info)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*info = (CUgraphExecUpdateResultInfo){0};
	end = exec->steps + exec->count;
	if (replace(exec->steps, end, graph, &result) == end)
		return driver_leave(CUDA_SUCCESS);
	info->result = result == CUDA_SUCCESS ? UPDATE_TOPOLOGY_CHANGED : UPDATE_ERROR;
	return driver_leave(result == CUDA_SUCCESS ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : result);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *wrong, int *why)
{
	CUgraphExecUpdateResultInfo info = {0};
	CUresult result = cuGraphExecUpdate_v2(exec, graph, wrong && why ? &info : NULL);

	if (wrong && why) {
		*wrong = info.errorNode;
		*why = info.result;
	}
	return result;
}
