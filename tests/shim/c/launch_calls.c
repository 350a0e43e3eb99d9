/*
 * The driver calls of a training program's step, repeated: first launches, launches, queries of
 * kernels, a change of a graph's node, a graph launch.
 *
 * usage: launch-calls ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>

#include "abi/cuda_entry.h"

enum { ENTRIES = 400, SHARED_BYTES_MOST = 8 };

static void must(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "%s: %d\n", what, (int)result);
	exit(1);
}

#define MUST(call) must(call, #call)

/* Each of them is launched for the first time once. */
static char *source(void)
{
	char *text = malloc(64 * ENTRIES + 200), *end = text;

	end += sprintf(end, ".version 8.0\n.target sm_80\n.address_size 64\n");
	for (int i = 0; i < ENTRIES; i++)
		end += sprintf(end, ".visible .entry e%d() { ret; }\n", i);
	return text;
}

static CUkernel kernel_named(CUlibrary library, int number)
{
	char name[16];
	CUkernel kernel;

	snprintf(name, sizeof(name), "e%d", number);
	MUST(cuLibraryGetKernel(&kernel, library, name));
	return kernel;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	CUDA_KERNEL_NODE_PARAMS node = {.gridDimX = 1,
					.gridDimY = 1,
					.gridDimZ = 1,
					.blockDimX = 1,
					.blockDimY = 1,
					.blockDimZ = 1};
	CUlibrary library;
	CUfunction function;
	CUcontext context;
	CUgraphExec exec;
	CUgraphNode added;
	CUgraph graph;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	MUST(cuLibraryLoadData(&library, source(), NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuKernelGetFunction(&function, kernel_named(library, 0)));
	node.func = function;
	MUST(cuGraphCreate(&graph, 0));
	MUST(cuGraphAddKernelNode_v2(&added, graph, NULL, 0, &node));
	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < rounds; i++) {
		CUkernel kernel = kernel_named(library, i % ENTRIES);

		MUST(cuKernelGetFunction(&function, kernel));
		MUST(cuKernelSetAttribute(SHARED_BYTES_MOST, 1024, kernel, 0));
		MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		MUST(cuGraphExecKernelNodeSetParams_v2(exec, added, &node));
		MUST(cuGraphLaunch(exec, NULL));
	}
	MUST(cuCtxSynchronize());
	return 0;
}
