/*
 * Executable graphs: the nodes in a valid order. A launch runs them one after the other in a
 * stream.
 */
#include "graph/graph.h"

#include <stdlib.h>

static size_t count_steps(const struct graph *graph)
{
	size_t count = 0;

	for (size_t i = 0; i < graph->count; i++)
		count += graph->nodes[i]->child ? count_steps(graph->nodes[i]->child) : 1;
	return count;
}

static void write_steps(struct exec *exec, const struct graph *graph)
{
	for (size_t i = 0; i < graph->count; i++) {
		const struct node *node = graph->nodes[i];

		if (node->child) {
			write_steps(exec, node->child);
			continue;
		}
		if (node->memory)
			node->memory->users++;
		exec->steps[exec->count++] =
		    (struct step){node->type, object_handle(node), node->work, node->memory};
	}
}

static void forget(struct exec *exec)
{
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].memory)
			graph_memory_release(exec->steps[i].memory);
	free(exec->steps);
	object_free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags)
{
	struct graph *graph;
	struct exec *exec;

	TRY(driver_enter());
	graph = object_get(handle, OBJECT_GRAPH);
	if (!out || !graph || flags & ~(uint64_t)0xf || (graph->exec && graph_has_memory(graph)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	exec = object_new(OBJECT_EXEC, sizeof(*exec));
	exec->steps = must(calloc(count_steps(graph) + 1, sizeof(*exec->steps)));
	write_steps(exec, graph);
	exec->flags = flags;
	if (!graph->exec) {
		graph->exec = exec;
		exec->source = graph;
	}
	*out = object_handle(exec);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	const uint64_t known = 0xf & ~(uint64_t)CU_GRAPH_INSTANTIATE_UPLOAD;

	return flags & ~known ? CUDA_ERROR_INVALID_VALUE : instantiate(out, graph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *wrong, char *log,
			       size_t log_bytes)
{
	if (wrong)
		*wrong = NULL;
	if (log && log_bytes)
		*log = '\0';
	return instantiate(out, graph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	CUresult result;

	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	parameters->hErrNode_out = NULL;
	result = instantiate(out, graph, parameters->flags);
	if (result == CUDA_SUCCESS && parameters->flags & CU_GRAPH_INSTANTIATE_UPLOAD) {
		result = cuGraphUpload(*out, parameters->hUploadStream);
		if (result != CUDA_SUCCESS)
			cuGraphExecDestroy(*out);
	}
	parameters->result_out = result != CUDA_SUCCESS;
	return result;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
					   const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct exec *exec;
	size_t i = 0;

	TRY(driver_enter());
	exec = object_get(handle, OBJECT_EXEC);
	while (exec && i < exec->count && exec->steps[i].node != node)
		i++;
	if (!exec || i == exec->count || exec->steps[i].type != CU_GRAPH_NODE_TYPE_KERNEL ||
	    !parameters || !function_get(kernel_work(parameters).function))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	exec->steps[i].work = kernel_work(parameters);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	struct exec *exec;

	TRY(driver_enter());
	exec = object_get(handle, OBJECT_EXEC);
	if (!exec)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (exec->source)
		exec->source->exec = NULL;
	forget(exec);
	return driver_leave(CUDA_SUCCESS);
}

/* Frees what an earlier launch left allocated. Fails without the flag for this. Needs the lock. */
static CUresult free_leftovers(struct exec *exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		struct graph_memory *memory = exec->steps[i].memory;

		if (exec->steps[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !memory->live)
			continue;
		if (!(exec->flags & CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH))
			return CUDA_ERROR_INVALID_VALUE;
		graph_memory_free(memory, &exec->done);
	}
	return CUDA_SUCCESS;
}

static CUresult begin(CUgraphExec handle, CUstream stream_handle, struct exec **exec)
{
	struct stream *stream;

	TRY(driver_enter());
	*exec = object_get(handle, OBJECT_EXEC);
	TRY_LOCKED(*exec ? stream_get(stream_handle, &stream) : CUDA_ERROR_INVALID_VALUE);
	return stream->capture ? driver_leave(CUDA_ERROR_NOT_SUPPORTED) : CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream)
{
	struct exec *exec;

	TRY(begin(handle, stream, &exec));
	driver_unlock();
	return graph_memory_back(handle);
}

/* Runs the steps. The lock is free between two of them, so the exec is looked up for each. */
static CUresult run_steps(CUgraphExec handle, CUstream stream_handle)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; result == CUDA_SUCCESS; i++) {
		struct stream *stream;
		struct exec *exec;
		struct step step;

		driver_lock();
		exec = object_get(handle, OBJECT_EXEC);
		if (!exec || i == exec->count || stream_get(stream_handle, &stream) != CUDA_SUCCESS)
			return driver_leave(CUDA_SUCCESS);
		step = exec->steps[i];
		exec->done = stream_ready(stream);
		if (step.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			step.memory->live = true;
		else if (step.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
			graph_memory_free(step.memory, &exec->done);
		driver_unlock();
		if (!step.memory)
			result = work_submit(&step.work, step.type, stream_handle);
	}
	return result;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream)
{
	struct exec *exec;

	TRY(begin(handle, stream, &exec));
	TRY_LOCKED(free_leftovers(exec));
	driver_unlock();
	TRY(graph_memory_back(handle));
	return run_steps(handle, stream);
}
