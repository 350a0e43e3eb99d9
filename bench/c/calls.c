/*
 * Measures driver calls in one process, and prints NAME NANOSECONDS CALIBRATION for each kind of
 * call. NANOSECONDS is the best of many short passes, so that other work on the core matters less.
 *
 * usage: bench-calls PASSES CALLS_PER_PASS LIVE
 * LIVE: the live allocations beside which allocations are measured. 0: only launches are measured.
 *
 * The program is linked with libcuda, and the caller may preload gpuslice's library. CALIBRATION is
 * the time of a loop between the passes. No library can affect it: it shows the machine's speed.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/cuda_entry.h"

enum { GRANULE_BYTES = 512, LARGEST_GRANULES = 8 };

static struct {
	uint64_t random;
	CUdeviceptr *live;
	uint64_t live_count;
} state = {.random = UINT64_C(88172645463325252)};

static void must(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "%s: %d\n", what, (int)result);
	exit(1);
}

static uint64_t next_random(void)
{
	state.random ^= state.random << 13;
	state.random ^= state.random >> 7;
	state.random ^= state.random << 17;
	return state.random;
}

static size_t some_bytes(void)
{
	return (1 + next_random() % LARGEST_GRANULES) * GRANULE_BYTES;
}

static void calibrate(void)
{
	static uint64_t word;

	for (int i = 0; i < 8; i++)
		__atomic_add_fetch(&word, next_random(), __ATOMIC_SEQ_CST);
}

static void launch(void)
{
	must(cuLaunchKernel((CUfunction)(void *)&state, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL),
	     "cuLaunchKernel");
}

/* Launches on two streams in turn. */
static void launch_on_two_streams(void)
{
	static uintptr_t stream;

	stream ^= 1;
	must(cuLaunchKernel((CUfunction)(void *)&state, 1, 1, 1, 32, 1, 1, 0,
			    (CUstream)(stream + 1), NULL, NULL),
	     "cuLaunchKernel");
}

/* The calls of CUDA 13's cudaFuncSetAttribute, which some programs call before every launch. */
static void set_attribute(void)
{
	enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
	CUkernel kernel = (CUkernel)(void *)&state;
	CUfunction function;

	must(cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
	must(cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 16, kernel, 0),
	     "cuKernelSetAttribute");
}

static void query_memory(void)
{
	size_t free_bytes, total_bytes;

	must(cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
}

static CUdeviceptr take_now(void)
{
	CUdeviceptr address = 0;

	must(cuMemAlloc_v2(&address, some_bytes()), "cuMemAlloc");
	return address;
}

static void give_now(CUdeviceptr address)
{
	must(cuMemFree_v2(address), "cuMemFree");
}

static CUdeviceptr take_in_order(void)
{
	CUdeviceptr address = 0;

	must(cuMemAllocAsync(&address, some_bytes(), NULL), "cuMemAllocAsync");
	return address;
}

static void give_in_order(CUdeviceptr address)
{
	must(cuMemFreeAsync(address, NULL), "cuMemFreeAsync");
}

static const struct memory {
	CUdeviceptr (*take)(void);
	void (*give)(CUdeviceptr);
} plain = {take_now, give_now}, in_order = {take_in_order, give_in_order}, *memory;

static void pair(void)
{
	memory->give(memory->take());
}

/* Frees a random live allocation, and allocates another. */
static void replace(void)
{
	CUdeviceptr *victim = &state.live[next_random() % state.live_count];

	memory->give(*victim);
	*victim = memory->take();
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double pass_ns(void (*call)(void), long calls)
{
	double from = seconds();

	for (long i = 0; i < calls; i++)
		call();
	return (seconds() - from) * 1e9 / (double)calls;
}

static void measure(const char *name, void (*call)(void), long passes, long calls)
{
	double best_ns = 1e9, calibration_ns = 1e9, ns;

	for (long pass = 0; pass < passes; pass++) {
		ns = pass_ns(calibrate, calls / 4);
		calibration_ns = ns < calibration_ns ? ns : calibration_ns;
		ns = pass_ns(call, calls);
		best_ns = ns < best_ns ? ns : best_ns;
	}
	printf("%s %.3f %.3f\n", name, best_ns, calibration_ns);
}

/* Measures with no live allocations, and with `live_count` live allocations. */
static void measure_memory(const char *name, const struct memory *kind, long passes, long calls)
{
	char live[64];

	memory = kind;
	measure(name, pair, passes, calls);
	for (uint64_t i = 0; i < state.live_count; i++)
		state.live[i] = memory->take();
	snprintf(live, sizeof(live), "%s_live", name);
	measure(live, replace, passes, calls);
	for (uint64_t i = 0; i < state.live_count; i++)
		memory->give(state.live[i]);
}

int main(int argc, char **argv)
{
	long passes = argc > 3 ? atol(argv[1]) : 50, calls = argc > 3 ? atol(argv[2]) : 10000;
	CUcontext context;

	state.live_count = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000000;
	state.live = calloc(state.live_count + 1, sizeof(*state.live));
	must(state.live ? cuInit(0) : CUDA_ERROR_OUT_OF_MEMORY, "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	measure("launch", launch, passes, calls * 4);
	measure("launch_on_two_streams", launch_on_two_streams, passes, calls * 4);
	measure("set_attribute", set_attribute, passes, calls * 4);
	if (!state.live_count)
		return 0;
	measure("memory_query", query_memory, passes, calls);
	measure_memory("alloc_free", &plain, passes, calls);
	measure_memory("async", &in_order, passes, calls);
	return 0;
}
