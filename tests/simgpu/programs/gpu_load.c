/*
 * Kernels of one duration without end, as a process of its own that a test can kill.
 *
 * Prints "ready", waits for a line, then prints after SECONDS how many kernels were done in that
 * time. At most IN_FLIGHT kernels are pending. usage: gpu-load NANOSECONDS SECONDS
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/cuda_entry.h"

enum { IN_FLIGHT = 512, BATCH = 16 };

static const char code[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
			   "// simgpu: duration_argument=0\n"
			   ".visible .entry busy(.param .u64 ns) { ret; }\n";

static void must(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "%s: %d\n", what, (int)result);
	exit(1);
}

#define MUST(call) must(call, #call)

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	uint64_t duration_ns = argc > 2 ? strtoull(argv[1], NULL, 10) : 0;
	double end = argc > 2 ? atof(argv[2]) : 0;
	void *parameters[] = {&duration_ns};
	CUevent events[IN_FLIGHT / BATCH];
	CUfunction function;
	CUcontext context;
	CUmodule module;
	long batch = 0;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	MUST(cuModuleLoadData(&module, code));
	MUST(cuModuleGetFunction(&function, module, "busy"));
	for (int i = 0; i < IN_FLIGHT / BATCH; i++)
		MUST(cuEventCreate(&events[i], 0));
	printf("ready\n");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	for (end += now(); now() < end; batch++) {
		CUevent event = events[batch % (IN_FLIGHT / BATCH)];

		MUST(cuEventSynchronize(event));
		for (int i = 0; i < BATCH; i++)
			MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
		MUST(cuEventRecord(event, NULL));
	}
	printf("%ld\n", (batch < IN_FLIGHT / BATCH ? 0 : batch * BATCH - IN_FLIGHT));
	return 0;
}
