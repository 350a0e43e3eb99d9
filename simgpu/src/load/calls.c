/*
 * cuda-calls prints what driver calls cost on GPU 0, one per line: NAME BEST MEDIAN, in
 * nanoseconds.
 *
 * BEST and MEDIAN are those of many short passes. The calls are those that the library makes, and
 * some that it never changes (cuCtxGetDevice), which show the machine's speed. Memory is not used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load/work.h"

enum { PASSES = 21, EVENTS = 64, SHORT_NS = 1000, LONG_NS = 200000000 };
enum { SHORT, LONG }; /* kinds of kernels, which are also numbers of launches */

/* clang-format off */
#define ENTRIES(X) \
	X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuDeviceGetDefaultMemPool) X(cuEventCreate) \
	X(cuEventElapsedTime) X(cuEventQuery) X(cuEventRecord) X(cuMemAllocAsync) X(cuMemFreeAsync) \
	X(cuMemGetInfo_v2) X(cuMemPoolGetAttribute) X(cuStreamGetCtx) X(cuStreamIsCapturing) \
	X(cuStreamSynchronize) X(cuThreadExchangeStreamCaptureMode)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
	ENTRIES(X)
#undef X
} cu;

static CUstream stream;
static CUevent timed[EVENTS], untimed;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

/* Calls made in a row must not fill the stream's queue. Between passes the GPU becomes idle. */
static void measure(const char *name, void (*call)(int), int calls, bool idle)
{
	double pass_ns[PASSES];

	for (int pass = 0; pass < PASSES; pass++) {
		uint64_t from_ns = now_ns();

		for (int i = 0; i < calls; i++)
			call(i);
		pass_ns[pass] = (double)(now_ns() - from_ns) / calls;
		if (idle)
			(void)cu.cuStreamSynchronize(stream);
	}
	qsort(pass_ns, PASSES, sizeof(*pass_ns), compare);
	printf("%s %.1f %.1f\n", name, pass_ns[0], pass_ns[PASSES / 2]);
	fflush(stdout);
}

#define CALL(name, ...)                                                                            \
	static void name(int i)                                                                    \
	{                                                                                          \
		(void)i;                                                                           \
		(void)(__VA_ARGS__);                                                               \
	}

static CUcontext context;
static CUdevice device;
static CUmemoryPool pool;
static CUdeviceptr address;
static uint64_t value;
static size_t free_bytes, total_bytes;
static float ms;
static int status, mode;

CALL(launch, work_launch(SHORT))
CALL(record, cu.cuEventRecord(untimed, stream))
CALL(record_timed, cu.cuEventRecord(timed[i % EVENTS], stream))
CALL(launch_and_record, (work_launch(SHORT), cu.cuEventRecord(timed[i % EVENTS], stream)))
CALL(launch_and_wait, (work_launch(SHORT), cu.cuStreamSynchronize(stream)))
CALL(query, cu.cuEventQuery(timed[0]))
CALL(elapsed, cu.cuEventElapsedTime(&ms, timed[0], timed[1]))
CALL(pool_attribute, cu.cuMemPoolGetAttribute(pool, 5 /* RESERVED_MEM_CURRENT */, &value))
CALL(stream_context, cu.cuStreamGetCtx(stream, &context))
CALL(current, cu.cuCtxGetCurrent(&context))
CALL(get_device, cu.cuCtxGetDevice(&device))
CALL(exchange_mode, (mode = 2, cu.cuThreadExchangeStreamCaptureMode(&mode)))
CALL(is_capturing, cu.cuStreamIsCapturing(stream, &status))
CALL(memory_info, cu.cuMemGetInfo_v2(&free_bytes, &total_bytes))
CALL(async_pair,
     (cu.cuMemAllocAsync(&address, 2 << 20, stream), cu.cuMemFreeAsync(address, stream)))

static void prepare(void)
{
	const struct work_options options = {.mode = "launch",
					     .from_ns = SHORT_NS,
					     .to_ns = LONG_NS,
					     .kinds = 2,
					     .streams = 1,
					     .blocks = 1};

	work_prepare(&options);
#define X(name) *(void **)&cu.name = work_find(#name);
	ENTRIES(X)
#undef X
	for (int i = 0; i < EVENTS; i++)
		(void)cu.cuEventCreate(&timed[i], 0);
	untimed = work_event();
	(void)cu.cuDeviceGetDefaultMemPool(&pool, 0);
	stream = work_launch(SHORT);
	work_wait();
}

int main(void)
{
	prepare();
	measure("cuCtxGetDevice", get_device, 1000, true);
	measure("cuCtxGetCurrent", current, 1000, true);
	measure("cuStreamGetCtx", stream_context, 1000, true);
	measure("cuStreamIsCapturing", is_capturing, 1000, true);
	measure("cuThreadExchangeStreamCaptureMode", exchange_mode, 1000, true);
	measure("cuMemPoolGetAttribute", pool_attribute, 1000, true);
	measure("cuMemGetInfo", memory_info, 200, true);
	measure("cuMemAllocAsync+cuMemFreeAsync", async_pair, 200, true);
	measure("cuEventRecord,no-timing", record, 200, true);
	measure("cuEventRecord,timing", record_timed, 200, true);
	measure("cuLaunchKernel", launch, 200, true);
	measure("cuLaunchKernel+cuEventRecord", launch_and_record, 200, true);
	measure("cuLaunchKernel+cuStreamSynchronize", launch_and_wait, 50, true);
	measure("cuEventQuery,done", query, 1000, true);
	measure("cuEventElapsedTime", elapsed, 1000, true);
	(void)work_launch(LONG);
	(void)cu.cuEventRecord(timed[0], stream);
	measure("cuEventQuery,not-done", query, 1000, false);
	work_wait();
	return 0;
}
