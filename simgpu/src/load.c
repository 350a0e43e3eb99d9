/*
 * cuda-load, in the lab's images, keeps GPU 0 busy and prints how much work was done.
 *
 * 	cuda-load SECONDS KERNEL_US [MODE [STREAMS [BLOCKS]]]
 *
 * MODE: launch, wait (for each launch), graph, cooperative, ex (with attributes), cluster (as ex,
 * in clusters of two blocks), runtime (the driver calls of NVIDIA's runtime for a launch) or copy.
 *
 * It prints "ready" at the start. Once a second and at the end it prints the seconds since the
 * start, the finished launches, and their work in percent of the time. On a real GPU the
 * percentage is inexact, because a kernel runs loops instead of a given time. The last line has the
 * times between launches: "best" is the least mean between two events (marks, see below).
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi/cuda_entry.h"

enum {
	MOST_STREAMS = 16,
	MARKS = 256, /* limit of unfinished marks */
	SECOND_NS = 1000000000,
	QUEUED_NS = 200000000, /* limit of unfinished work, without the two latest marks */
	MARK_NS = 250000,      /* work from one mark to the next */
	GRAPH_KERNELS = 20,
	COPY_BYTES = 1 << 20,
	STEPS_MOST = 1 << 20,	    /* the first steps, whose times are kept */
	ATTRIBUTE_CLUSTER = 4,	    /* CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION */
	ATTRIBUTE_PROGRAMMATIC = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
	ATTRIBUTE_PRIORITY = 8,	    /* CU_LAUNCH_ATTRIBUTE_PRIORITY */
	RUNTIME_VERSION = 12000,
};

static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			   "// simgpu: duration_argument=0\n"
			   ".visible .entry busy(.param .u64 loops)\n{\n"
			   "	.reg .u64 %left;\n	.reg .pred %more;\n"
			   "	ld.param.u64 %left, [loops];\n"
			   "again:\n	sub.u64 %left, %left, 1;\n"
			   "	setp.ne.u64 %more, %left, 0;\n	@%more bra again;\n	ret;\n}\n";

struct attribute {
	unsigned int id;
	_Alignas(8) int value[16];
};

/* These are found by dlopen and dlsym, as in programs with a statically linked runtime. */
/* clang-format off */
#define ENTRIES(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
	X(cuModuleLoadData) X(cuModuleGetFunction) X(cuStreamCreate) X(cuStreamSynchronize) \
	X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) \
	X(cuMemAlloc_v2) X(cuMemcpyDtoDAsync_v2) X(cuLaunchKernel) X(cuLaunchCooperativeKernel) \
	X(cuLaunchKernelEx) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) \
	X(cuGraphInstantiateWithFlags) X(cuGraphLaunch)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
	ENTRIES(X)
#undef X
} cu;

static struct {
	void *driver;
	CUfunction function;
	CUstream streams[MOST_STREAMS];
	CUgraphExec graph;
	int stream_count;
	unsigned int blocks;
	CUdeviceptr from, to;
	uint64_t kernel_ns, launch_ns; /* time of one kernel, and of one launch call */
	const char *mode;
} load;

static void check(CUresult result, const char *call)
{
	if (!result)
		return;
	fprintf(stderr, "cuda-load: %s: error %d\n", call, (int)result);
	exit(1);
}
#define CALL(name, ...) check(cu.name(__VA_ARGS__), #name)

static void *find(const char *name)
{
	void *found = load.driver ? dlsym(load.driver, name) : NULL;

	if (found)
		return found;
	fprintf(stderr, "cuda-load: %s is missing\n", load.driver ? name : "libcuda.so.1");
	exit(1);
}

static void open_driver(void)
{
	load.driver = dlopen("libcuda.so.1", RTLD_NOW);
#define X(name) *(void **)&cu.name = find(#name);
	ENTRIES(X)
#undef X
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void find_for_runtime(const char *name, void *found)
{
	__typeof__(&cuGetProcAddress_v2) get;

	*(void **)&get = find("cuGetProcAddress_v2");
	check(get(name, found, RUNTIME_VERSION, 0, NULL), name);
}

/* Finds the functions for a launch through cuGetProcAddress, as NVIDIA's runtime does. */
static void prepare_runtime(void)
{
	__typeof__(&cuLibraryLoadData) load_library;
	__typeof__(&cuLibraryGetKernel) get_kernel;
	CUlibrary library;

	find_for_runtime("cuLibraryLoadData", &load_library);
	find_for_runtime("cuLibraryGetKernel", &get_kernel);
	find_for_runtime("cuLaunchKernel", &cu.cuLaunchKernel);
	check(load_library(&library, code, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
	check(get_kernel((CUkernel *)&load.function, library, "busy"), "cuLibraryGetKernel");
}

static void launch_with_attributes(CUstream stream, void **parameters, unsigned int count)
{
	struct attribute attributes[] = {{ATTRIBUTE_PRIORITY, {0}},
					 {ATTRIBUTE_PROGRAMMATIC, {1}},
					 {ATTRIBUTE_CLUSTER, {2, 1, 1}}};
	CUlaunchConfig config = {load.blocks, 1, 1, 1, 1, 1, 0, stream, attributes, count};

	CALL(cuLaunchKernelEx, &config, load.function, parameters, NULL);
}

static void launch_kernel(CUstream stream)
{
	void *parameters[] = {&load.kernel_ns};

	if (!strcmp(load.mode, "cooperative"))
		CALL(cuLaunchCooperativeKernel, load.function, load.blocks, 1, 1, 1, 1, 1, 0,
		     stream, parameters);
	else if (!strcmp(load.mode, "ex"))
		launch_with_attributes(stream, parameters, 2);
	else if (!strcmp(load.mode, "cluster"))
		launch_with_attributes(stream, parameters, 3);
	else
		CALL(cuLaunchKernel, load.function, load.blocks, 1, 1, 1, 1, 1, 0, stream,
		     parameters, NULL);
}

static void make_graph(void)
{
	CUgraph graph;

	CALL(cuStreamBeginCapture_v2, load.streams[0], CU_STREAM_CAPTURE_RELAXED);
	for (int i = 0; i < GRAPH_KERNELS; i++)
		launch_kernel(load.streams[0]);
	CALL(cuStreamEndCapture, load.streams[0], &graph);
	CALL(cuGraphInstantiateWithFlags, &load.graph, graph, 0);
	load.launch_ns = GRAPH_KERNELS * load.kernel_ns;
}

static void prepare(void)
{
	CUcontext context;
	CUmodule module;

	open_driver();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	if (!strcmp(load.mode, "runtime")) {
		prepare_runtime();
	} else {
		CALL(cuModuleLoadData, &module, code);
		CALL(cuModuleGetFunction, &load.function, module, "busy");
	}
	for (int i = 0; i < load.stream_count; i++)
		CALL(cuStreamCreate, &load.streams[i], CU_STREAM_NON_BLOCKING);
	CALL(cuMemAlloc_v2, &load.from, COPY_BYTES);
	CALL(cuMemAlloc_v2, &load.to, COPY_BYTES);
	load.launch_ns = load.kernel_ns;
	if (!strcmp(load.mode, "graph"))
		make_graph();
}

static uint32_t step_ns[STEPS_MOST];
static uint64_t steps;
static double best_ns = 1e18; /* the least mean time of a launch between two marks */

static int compare(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;

	return (one > other) - (one < other);
}

static void print_steps(void)
{
	uint64_t count = steps < STEPS_MOST ? steps : STEPS_MOST;

	qsort(step_ns, count, sizeof(*step_ns), compare);
	printf("launch to launch: best %.1f ns, p50 %.1f us, p99 %.1f us, longest %.1f us\n",
	       best_ns, step_ns[count / 2] / 1e3, step_ns[count * 99 / 100] / 1e3,
	       step_ns[count - 1] / 1e3);
}

static void submit(CUstream stream)
{
	if (load.graph)
		CALL(cuGraphLaunch, load.graph, stream);
	else if (!strcmp(load.mode, "copy"))
		CALL(cuMemcpyDtoDAsync_v2, load.to, load.from, COPY_BYTES, stream);
	else
		launch_kernel(stream);
	if (!strcmp(load.mode, "wait"))
		CALL(cuStreamSynchronize, stream);
}

/* Marks: events with the number of launches before each, oldest first. */
static struct {
	CUevent event;
	uint64_t launches;
} marks[MARKS];
static uint64_t first_mark, next_mark, finished, marks_most;

static void look_at_marks(int wait_for_one)
{
	while (first_mark < next_mark) {
		CUevent event = marks[first_mark % MARKS].event;
		CUresult result =
		    wait_for_one ? cu.cuEventSynchronize(event) : cu.cuEventQuery(event);

		if (result == CUDA_ERROR_NOT_READY)
			return;
		check(result, "cuEventQuery");
		finished += marks[first_mark++ % MARKS].launches;
		wait_for_one = 0;
	}
}

static void mark(CUstream stream, uint64_t launches)
{
	if (next_mark - first_mark == marks_most)
		look_at_marks(1);
	if (!marks[next_mark % MARKS].event)
		CALL(cuEventCreate, &marks[next_mark % MARKS].event, CU_EVENT_DISABLE_TIMING);
	marks[next_mark % MARKS].launches = launches;
	CALL(cuEventRecord, marks[next_mark++ % MARKS].event, stream);
	look_at_marks(0);
}

static void print(const char *what, uint64_t elapsed_ns, uint64_t launches, uint64_t of_ns)
{
	printf("%s %.2f s: %llu launches, %.2f %% of the time\n", what, (double)elapsed_ns / 1e9,
	       (unsigned long long)launches,
	       100.0 * (double)launches * (double)load.launch_ns / (double)of_ns);
	fflush(stdout);
}

static void run(uint64_t duration_ns)
{
	uint64_t start_ns = now_ns(), at_ns = start_ns, printed_ns = start_ns, before = 0;
	uint64_t batch = MARK_NS / (load.launch_ns ? load.launch_ns : 1) + 1, pending = 0;
	uint64_t second_ns = start_ns + SECOND_NS, batch_from_ns = start_ns, from_ns;

	marks_most = QUEUED_NS / (batch * load.launch_ns + 1) + 2;
	if (marks_most > MARKS)
		marks_most = MARKS;
	while (at_ns < start_ns + duration_ns) {
		CUstream stream = load.streams[steps % (uint64_t)load.stream_count];

		submit(stream);
		if (++pending == batch) {
			mark(stream, pending);
			if ((double)(now_ns() - batch_from_ns) < best_ns * (double)batch)
				best_ns = (double)(now_ns() - batch_from_ns) / (double)batch;
			batch_from_ns = now_ns();
			pending = 0;
		}
		from_ns = at_ns;
		at_ns = now_ns();
		if (steps < STEPS_MOST)
			step_ns[steps] = (uint32_t)(at_ns - from_ns);
		steps++;
		if (at_ns >= second_ns) {
			print("after", at_ns - start_ns, finished - before, at_ns - printed_ns);
			before = finished;
			printed_ns = at_ns;
			second_ns += SECOND_NS;
		}
	}
	print("total", at_ns - start_ns, finished, at_ns - start_ns);
	print_steps();
	CALL(cuCtxSynchronize);
}

int main(int count, char **arguments)
{
	if (count < 3) {
		fprintf(stderr, "usage: cuda-load SECONDS KERNEL_US [launch | wait | graph |"
				" cooperative | ex | cluster | runtime | copy"
				" [STREAMS [BLOCKS]]]\n");
		return 2;
	}
	load.kernel_ns = (uint64_t)(atof(arguments[2]) * 1e3);
	load.mode = count > 3 ? arguments[3] : "launch";
	load.stream_count = count > 4 ? atoi(arguments[4]) : 1;
	load.blocks = count > 5 ? (unsigned int)atoi(arguments[5]) : 1;
	if (load.stream_count < 1 || load.stream_count > MOST_STREAMS) {
		fprintf(stderr, "cuda-load: STREAMS: invalid value %s: must be 1 to %d\n",
			arguments[4], MOST_STREAMS);
		return 2;
	}
	prepare();
	printf("ready\n");
	fflush(stdout);
	run((uint64_t)(atof(arguments[1]) * 1e9));
	return 0;
}
