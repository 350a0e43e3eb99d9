/*
 * What brings functions into graphs and executable graphs. Drivers load their code when a node is
 * made, when the graph is instantiated or when it first runs: here it is loaded ahead, by a call
 * that can be refused, and each of the others is measured as well. An executable graph that was
 * changed is measured again at its next launch.
 */
#include "first.h"
#include "graph_code.h"
#include "homes.h"
#include "hooks.h"
#include "local_memory.h"
#include "seen.h"

enum { NODE_KERNEL = 0 };

/* In the context that is current. */
static CUresult load_here(CUfunction function)
{
	CUresult result;

	if (!function || (vgpu_seen(function) && !vgpu_is_kernel(function)))
		return CUDA_SUCCESS;
	result = vgpu_load_ahead(&function);
	if (result == CUDA_SUCCESS)
		vgpu_local_in_graph(vgpu_local_of(function).thread_bytes);
	return result;
}

/* What a call may bring code for, and the context that it belongs to; NULL: the current one. */
struct ready {
	CUresult result;
	CUcontext home;
};

/* What a node is to run; of a later version than 1 also a kernel, and a context of its own, in
 * which a kernel is used; a function's is its module's all the same. */
static struct ready ready(const CUDA_KERNEL_NODE_PARAMS *parameters, bool later)
{
	CUfunction function = parameters ? parameters->function : NULL;
	struct ready ready = {CUDA_SUCCESS, vgpu_home_of_function(function)};
	struct vgpu_visit visit;

	if (!ready.home && later && parameters)
		ready.home = parameters->context;
	if (!function && parameters && later && parameters->kernel) {
		vgpu_note_kernel(parameters->kernel);
		function = (CUfunction)(void *)parameters->kernel;
	}
	visit = vgpu_visit_context(ready.home);
	ready.result = load_here(function);
	vgpu_visit_end(visit);
	return ready;
}

static struct ready ready_any(const CUgraphNodeParams *parameters)
{
	return parameters && parameters->type == NODE_KERNEL ? ready(&parameters->kernel, true)
							     : (struct ready){0};
}

#define WITH(prepared, symbol, params, args)                                                       \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct ready ready_ = prepared;                                                    \
		CUresult result = ready_.result;                                                   \
                                                                                                   \
		if (result == CUDA_SUCCESS)                                                        \
			VGPU_CALL_GRAPH_IN(ready_.home, result, real_##symbol args);               \
		return result;                                                                     \
	}

WITH(ready(parameters, false), cuGraphAddKernelNode,
     (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
      const CUDA_KERNEL_NODE_PARAMS *parameters),
     (node, graph, after, count, parameters))
WITH(ready(parameters, true), cuGraphAddKernelNode_v2,
     (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
      const CUDA_KERNEL_NODE_PARAMS *parameters),
     (node, graph, after, count, parameters))
WITH(ready_any(parameters), cuGraphAddNode,
     (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
      CUgraphNodeParams *parameters),
     (node, graph, after, count, parameters))
WITH(ready_any(parameters), cuGraphAddNode_v2,
     (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
      CUgraphNodeParams *parameters),
     (node, graph, after, edges, count, parameters))
WITH(ready(parameters, false), cuGraphKernelNodeSetParams,
     (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters), (node, parameters))
WITH(ready(parameters, true), cuGraphKernelNodeSetParams_v2,
     (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters), (node, parameters))
WITH(ready_any(parameters), cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *parameters),
     (node, parameters))

static const struct ready nothing = {CUDA_SUCCESS, NULL};

/* The exec may run what it never ran: before the call, because another thread may launch it. */
static struct ready changing(CUgraphExec exec, struct ready prepared)
{
	vgpu_unsee(vgpu_exec_key(exec));
	return prepared;
}

WITH(changing(exec, ready(parameters, false)), cuGraphExecKernelNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters),
     (exec, node, parameters))
WITH(changing(exec, ready(parameters, true)), cuGraphExecKernelNodeSetParams_v2,
     (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters),
     (exec, node, parameters))
WITH(changing(exec, ready_any(parameters)), cuGraphExecNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters), (exec, node, parameters))
WITH(changing(exec, nothing), cuGraphExecChildGraphNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, CUgraph child), (exec, node, child))
WITH(changing(exec, nothing), cuGraphExecUpdate,
     (CUgraphExec exec, CUgraph graph, CUgraphNode *wrong, int *why), (exec, graph, wrong, why))
WITH(changing(exec, nothing), cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, void *info),
     (exec, graph, info))
WITH(changing(exec, nothing), cuGraphNodeSetEnabled,
     (CUgraphExec exec, CUgraphNode node, unsigned int enabled), (exec, node, enabled))
