/*
 * cuda-load, of the lab's images: keeps GPU 0 busy, and says how much it got done.
 *
 *	cuda-load SECONDS KERNEL_US [MODE [STREAMS [BLOCKS]]]
 *
 * MODE: launch, wait (for each), graph, cooperative, ex or copy.
 *
 * It prints "ready" when it begins. Once a second, and at the end, a line: seconds since the
 * start, finished launches, and the work in them in percent of the time (exact on the simulated
 * GPU, where a kernel takes the time that it is given; on a real GPU it counts loops). Then what
 * the call of a launch took. The driver is loaded by dlopen, as programs with a statically linked
 * runtime do.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	MOST_STREAMS = 16,
	MARKS = 64,	       /* unfinished marks at most, */
	QUEUED_NS = 200000000, /* and work in them, but for the two latest */
	MARK_NS = 1000000,     /* work between two marks */
	GRAPH_KERNELS = 20,
	NON_BLOCKING = 1,
	NO_TIMING = 2,
	RELAXED = 2,
	NOT_READY = 600,
	COPY_BYTES = 1 << 20,
	CALLS_MOST = 1 << 20, /* whose times are kept, the first ones */
};

static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			   "// simgpu: duration_argument=0\n"
			   ".visible .entry busy(.param .u64 loops)\n{\n"
			   "	.reg .u64 %left;\n	.reg .pred %more;\n"
			   "	ld.param.u64 %left, [loops];\n"
			   "again:\n	sub.u64 %left, %left, 1;\n"
			   "	setp.ne.u64 %more, %left, 0;\n	@%more bra again;\n	ret;\n}\n";

#define ENTRIES(X)                                                                                 \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                \
	X(cuCtxSetCurrent, (void *))                                                               \
	X(cuModuleLoadData, (void **, const void *))                                               \
	X(cuModuleGetFunction, (void **, void *, const char *))                                    \
	X(cuStreamCreate, (void **, unsigned int))                                                 \
	X(cuStreamSynchronize, (void *))                                                           \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuEventCreate, (void **, unsigned int))                                                  \
	X(cuEventRecord, (void *, void *))                                                         \
	X(cuEventQuery, (void *))                                                                  \
	X(cuEventSynchronize, (void *))                                                            \
	X(cuMemAlloc_v2, (unsigned long long *, size_t))                                           \
	X(cuMemcpyDtoDAsync_v2, (unsigned long long, unsigned long long, size_t, void *))          \
	X(cuLaunchKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int,         \
			   unsigned int, unsigned int, unsigned int, void *, void **, void **))    \
	X(cuLaunchCooperativeKernel,                                                               \
	  (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,           \
	   unsigned int, unsigned int, void *, void **))                                           \
	X(cuLaunchKernelEx, (const void *, void *, void **, void **))                              \
	X(cuStreamBeginCapture_v2, (void *, int))                                                  \
	X(cuStreamEndCapture, (void *, void **))                                                   \
	X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                      \
	X(cuGraphLaunch, (void *, void *))

static struct {
#define X(name, params) int(*name) params;
	ENTRIES(X)
#undef X
} cu;

struct config {
	unsigned int grid[3], block[3], shared_bytes;
	void *stream, *attributes;
	unsigned int attribute_count;
};

static struct {
	void *function, *streams[MOST_STREAMS], *graph;
	int stream_count;
	unsigned int blocks;
	unsigned long long from, to;
	uint64_t kernel_ns, launch_ns; /* of a kernel; of what one call launches */
	const char *mode;
} load;

static void check(int result, const char *call)
{
	if (!result)
		return;
	fprintf(stderr, "cuda-load: %s: error %d\n", call, result);
	exit(1);
}
#define CALL(name, ...) check(cu.name(__VA_ARGS__), #name)

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void open_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	const char *missing = driver ? NULL : "libcuda.so.1";

#define X(name, params)                                                                            \
	if (driver && !(*(void **)&cu.name = dlsym(driver, #name)))                                \
		missing = #name;
	ENTRIES(X)
#undef X
	if (missing) {
		fprintf(stderr, "cuda-load: %s is missing\n", missing);
		exit(1);
	}
}

static void launch_kernel(void *stream)
{
	void *parameters[] = {&load.kernel_ns};
	struct config config = {{load.blocks, 1, 1}, {1, 1, 1}, 0, stream, NULL, 0};

	if (!strcmp(load.mode, "cooperative"))
		CALL(cuLaunchCooperativeKernel, load.function, load.blocks, 1, 1, 1, 1, 1, 0,
		     stream, parameters);
	else if (!strcmp(load.mode, "ex"))
		CALL(cuLaunchKernelEx, &config, load.function, parameters, NULL);
	else
		CALL(cuLaunchKernel, load.function, load.blocks, 1, 1, 1, 1, 1, 0, stream,
		     parameters, NULL);
}

static void make_graph(void)
{
	void *graph;

	CALL(cuStreamBeginCapture_v2, load.streams[0], RELAXED);
	for (int i = 0; i < GRAPH_KERNELS; i++)
		launch_kernel(load.streams[0]);
	CALL(cuStreamEndCapture, load.streams[0], &graph);
	CALL(cuGraphInstantiateWithFlags, &load.graph, graph, 0);
	load.launch_ns = GRAPH_KERNELS * load.kernel_ns;
}

static void prepare(void)
{
	void *context, *module;

	open_driver();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	CALL(cuModuleLoadData, &module, code);
	CALL(cuModuleGetFunction, &load.function, module, "busy");
	for (int i = 0; i < load.stream_count; i++)
		CALL(cuStreamCreate, &load.streams[i], NON_BLOCKING);
	CALL(cuMemAlloc_v2, &load.from, COPY_BYTES);
	CALL(cuMemAlloc_v2, &load.to, COPY_BYTES);
	load.launch_ns = load.kernel_ns;
	if (!strcmp(load.mode, "graph"))
		make_graph();
}

static uint32_t call_ns[CALLS_MOST];
static uint64_t calls;

static int compare(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;

	return (one > other) - (one < other);
}

static void print_calls(void)
{
	uint64_t count = calls < CALLS_MOST ? calls : CALLS_MOST;

	qsort(call_ns, count, sizeof(*call_ns), compare);
	printf("calls: p50 %.1f us, p99 %.1f us, longest %.1f us\n", call_ns[count / 2] / 1e3,
	       call_ns[count * 99 / 100] / 1e3, call_ns[count - 1] / 1e3);
}

static void submit(void *stream)
{
	uint64_t from_ns = now_ns();

	if (load.graph)
		CALL(cuGraphLaunch, load.graph, stream);
	else if (!strcmp(load.mode, "copy"))
		CALL(cuMemcpyDtoDAsync_v2, load.to, load.from, COPY_BYTES, stream);
	else
		launch_kernel(stream);
	if (calls < CALLS_MOST)
		call_ns[calls] = (uint32_t)(now_ns() - from_ns);
	calls++;
	if (!strcmp(load.mode, "wait"))
		CALL(cuStreamSynchronize, stream);
}

/* Launches between two events, oldest first. */
static struct {
	void *event;
	uint64_t launches;
} marks[MARKS];
static uint64_t first_mark, next_mark, finished, marks_most;

static void look_at_marks(int wait_for_one)
{
	while (first_mark < next_mark) {
		void *event = marks[first_mark % MARKS].event;
		int result = wait_for_one ? cu.cuEventSynchronize(event) : cu.cuEventQuery(event);

		if (result == NOT_READY)
			return;
		check(result, "cuEventQuery");
		finished += marks[first_mark++ % MARKS].launches;
		wait_for_one = 0;
	}
}

static void mark(void *stream, uint64_t launches)
{
	if (next_mark - first_mark == marks_most)
		look_at_marks(1);
	if (!marks[next_mark % MARKS].event)
		CALL(cuEventCreate, &marks[next_mark % MARKS].event, NO_TIMING);
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
	uint64_t start_ns = now_ns(), second_ns = start_ns, before = 0, pending = 0, at_ns;
	uint64_t batch = MARK_NS / (load.launch_ns ? load.launch_ns : 1) + 1;

	marks_most = QUEUED_NS / (batch * load.launch_ns + 1) + 2;
	if (marks_most > MARKS)
		marks_most = MARKS;
	for (int i = 0; (at_ns = now_ns()) < start_ns + duration_ns; i++) {
		void *stream = load.streams[i % load.stream_count];

		submit(stream);
		if (++pending == batch) {
			mark(stream, pending);
			pending = 0;
		}
		if (at_ns - second_ns >= 1000000000) {
			print("after", at_ns - start_ns, finished - before, at_ns - second_ns);
			before = finished;
			second_ns = at_ns;
		}
	}
	print("total", at_ns - start_ns, finished, at_ns - start_ns);
	print_calls();
	CALL(cuCtxSynchronize);
}

int main(int count, char **arguments)
{
	if (count < 3) {
		fprintf(stderr, "usage: cuda-load SECONDS KERNEL_US [launch | wait | graph |"
				" cooperative | ex | copy [STREAMS [BLOCKS]]]\n");
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
