/* See work.h. */
#include "load/work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	COPY_BYTES = 1 << 20,
	BESIDE_BYTES = 16 << 20,
	BESIDE_IN_FLIGHT = 2,
	KIND_BYTES = 640,	    /* the text of a kernel */
	TRIES = 50,		    /* kernels that measure the GPU's speed; the shortest counts */
	TRY_LOOPS = 100000,	    /* below a millisecond, so that it fits a time slice */
	ATTRIBUTE_CLUSTER = 4,	    /* CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION */
	ATTRIBUTE_PROGRAMMATIC = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
	ATTRIBUTE_PRIORITY = 8,	    /* CU_LAUNCH_ATTRIBUTE_PRIORITY */
	RUNTIME_VERSION = 12000,
};

static const char head[] = ".version 6.0\n.target sm_50\n.address_size 64\n";
static const char kernel[] =
    "// simgpu: duration_argument=1\n"
    ".visible .entry busy%d(.param .u64 loops, .param .u64 ns, .param .u64 to)\n{\n"
    "	.reg .u64 %%left, %%x, %%to;\n	.reg .pred %%more;\n"
    "	ld.param.u64 %%left, [loops];\n	ld.param.u64 %%to, [to];\n	mov.u64 %%x, %%left;\n"
    "again:\n	mad.lo.u64 %%x, %%x, 6364136223846793005, 1442695040888963407;\n"
    "	sub.u64 %%left, %%left, 1;\n	setp.ne.u64 %%more, %%left, 0;\n"
    "	@%%more bra again;\n	st.global.u64 [%%to], %%x;\n	ret;\n}\n";

struct attribute {
	unsigned int id;
	_Alignas(8) int value[16];
};

/* These are found by dlopen and dlsym, as in programs with a statically linked runtime. */
/* clang-format off */
#define ENTRIES(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuModuleLoadData) \
	X(cuModuleGetFunction) X(cuStreamCreate) X(cuStreamSynchronize) X(cuEventCreate) \
	X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) \
	X(cuMemAlloc_v2) X(cuMemAllocHost_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyHtoDAsync_v2) \
	X(cuLaunchKernel) X(cuLaunchCooperativeKernel) X(cuLaunchKernelEx) \
	X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) \
	X(cuGraphLaunch)
/* clang-format on */

static struct {
#define X(name) __typeof__(&name) name;
	ENTRIES(X)
#undef X
} cu;

static struct {
	struct work_options options;
	void *driver;
	CUfunction functions[MOST_KINDS + 2]; /* the kinds, work_beside's, measure_speed's */
	CUstream streams[MOST_STREAMS];
	CUgraphExec graph;
	CUdeviceptr from, to;
	double loops_per_ns;
	struct {
		CUstream stream;
		CUevent events[BESIDE_IN_FLIGHT];
		CUdeviceptr to;
		void *from;
		uint64_t kernel_ns, count; /* kernel_ns 0: copies */
	} beside;
} work;

static void check(CUresult result, const char *call)
{
	if (!result)
		return;
	fprintf(stderr, "cuda-load: %s: error %d\n", call, (int)result);
	exit(1);
}
#define CALL(name, ...) check(cu.name(__VA_ARGS__), #name)

void *work_find(const char *name)
{
	void *found = work.driver ? dlsym(work.driver, name) : NULL;

	if (found)
		return found;
	fprintf(stderr, "cuda-load: %s is missing\n", work.driver ? name : "libcuda.so.1");
	exit(1);
}

static void open_driver(void)
{
	work.driver = dlopen("libcuda.so.1", RTLD_NOW);
#define X(name) *(void **)&cu.name = work_find(#name);
	ENTRIES(X)
#undef X
}

static bool is_mode(const char *mode)
{
	return strcmp(work.options.mode, mode) == 0;
}

static void find_for_runtime(const char *name, void *found)
{
	__typeof__(&cuGetProcAddress_v2) get;

	*(void **)&get = work_find("cuGetProcAddress_v2");
	check(get(name, found, RUNTIME_VERSION, 0, NULL), name);
}

/* Loads the kernels. `runtime`: finds functions through cuGetProcAddress, as NVIDIA's runtime. */
static void load_kernels(bool runtime)
{
	__typeof__(&cuLibraryLoadData) load_library;
	__typeof__(&cuLibraryGetKernel) get_kernel;
	CUlibrary library;
	CUmodule module;
	char name[16], *code = malloc(sizeof(head) + ((size_t)work.options.kinds + 2) * KIND_BYTES);
	char *end = code + sprintf(code, "%s", head);

	for (int i = 0; i <= work.options.kinds + 1; i++)
		end += snprintf(end, KIND_BYTES, kernel, i);
	if (runtime) {
		find_for_runtime("cuLibraryLoadData", &load_library);
		find_for_runtime("cuLibraryGetKernel", &get_kernel);
		find_for_runtime("cuLaunchKernel", &cu.cuLaunchKernel);
		check(load_library(&library, code, NULL, NULL, 0, NULL, NULL, 0), "load");
	} else {
		CALL(cuModuleLoadData, &module, code);
	}
	for (int i = 0; i <= work.options.kinds + 1; i++) {
		snprintf(name, sizeof(name), "busy%d", i);
		if (runtime)
			check(get_kernel((CUkernel *)&work.functions[i], library, name), name);
		else
			CALL(cuModuleGetFunction, &work.functions[i], module, name);
	}
	free(code);
}

static void launch_with_attributes(CUfunction function, CUstream stream, void **parameters,
				   unsigned int count)
{
	struct attribute attributes[] = {{ATTRIBUTE_PRIORITY, {0}},
					 {ATTRIBUTE_PROGRAMMATIC, {1}},
					 {ATTRIBUTE_CLUSTER, {2, 1, 1}}};
	CUlaunchConfig config = {work.options.blocks, 1, 1, 1, 1, 1, 0, stream, attributes, count};

	CALL(cuLaunchKernelEx, &config, function, parameters, NULL);
}

static void launch_plainly(CUfunction function, unsigned int blocks, uint64_t loops, uint64_t ns,
			   CUstream stream)
{
	void *parameters[] = {&loops, &ns, &work.to};

	CALL(cuLaunchKernel, function, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static uint64_t loops_of(uint64_t ns)
{
	return (uint64_t)((double)ns * work.loops_per_ns) + 1; /* the kernel cannot run 0 loops */
}

/* Launches a kernel of the kind. The durations of the kinds are evenly spaced. */
static void launch_kernel(uint64_t kind, CUstream stream)
{
	const struct work_options *options = &work.options;
	CUfunction function = work.functions[kind];
	uint64_t ns = options->from_ns, loops;
	void *parameters[] = {&loops, &ns, &work.to};

	if (kind)
		ns = (uint64_t)((double)ns + ((double)options->to_ns - (double)ns) * (double)kind /
						 (options->kinds - 1));
	loops = loops_of(ns);
	if (is_mode("cooperative"))
		CALL(cuLaunchCooperativeKernel, function, options->blocks, 1, 1, 1, 1, 1, 0, stream,
		     parameters);
	else if (is_mode("ex"))
		launch_with_attributes(function, stream, parameters, 2);
	else if (is_mode("cluster"))
		launch_with_attributes(function, stream, parameters, 3);
	else
		launch_plainly(function, options->blocks, loops, ns, stream);
}

static void make_graph(void)
{
	CUgraph graph;

	CALL(cuStreamBeginCapture_v2, work.streams[0], CU_STREAM_CAPTURE_RELAXED);
	for (int i = 0; i < GRAPH_KERNELS; i++)
		launch_kernel((uint64_t)(i % work.options.kinds), work.streams[0]);
	CALL(cuStreamEndCapture, work.streams[0], &graph);
	CALL(cuGraphInstantiateWithFlags, &work.graph, graph, 0);
}

/*
 * Measures how fast the GPU runs the loop. The shortest of many kernels counts, because another
 * context may run during the others. On a simulated GPU these kernels take no time. They are of a
 * kind of their own, because a launch's cost is expected to be that of earlier ones of its kind.
 */
static void measure_speed(CUstream stream)
{
	float best_ms = 1e9f, ms;
	CUevent events[TRIES + 1];

	for (int i = 0; i <= TRIES; i++)
		CALL(cuEventCreate, &events[i], 0);
	for (int i = 0; i < TRIES; i++) {
		work_record(events[i], stream);
		launch_plainly(work.functions[work.options.kinds + 1], 1, TRY_LOOPS, 0, stream);
	}
	work_record(events[TRIES], stream);
	CALL(cuStreamSynchronize, stream);
	for (int i = 0; i < TRIES; i++) {
		CALL(cuEventElapsedTime, &ms, events[i], events[i + 1]);
		best_ms = ms < best_ms ? ms : best_ms;
	}
	work.loops_per_ns = best_ms > 0 ? TRY_LOOPS / ((double)best_ms * 1e6) : 1;
}

static void prepare_beside(void)
{
	CALL(cuStreamCreate, &work.beside.stream, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < BESIDE_IN_FLIGHT; i++)
		work.beside.events[i] = work_event();
	work.beside.kernel_ns = (uint64_t)(atof(work.options.beside) * 1e3);
	if (work.beside.kernel_ns)
		return;
	CALL(cuMemAlloc_v2, &work.beside.to, BESIDE_BYTES);
	CALL(cuMemAllocHost_v2, &work.beside.from, BESIDE_BYTES);
}

void work_prepare(const struct work_options *options)
{
	CUcontext context;

	work.options = *options;
	open_driver();
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	load_kernels(is_mode("runtime"));
	for (int i = 0; i < options->streams; i++)
		CALL(cuStreamCreate, &work.streams[i], CU_STREAM_NON_BLOCKING);
	CALL(cuMemAlloc_v2, &work.from, COPY_BYTES);
	CALL(cuMemAlloc_v2, &work.to, COPY_BYTES);
	measure_speed(work.streams[0]);
	if (is_mode("graph"))
		make_graph();
	if (options->beside)
		prepare_beside();
}

uint64_t work_launch_ns(void)
{
	uint64_t kernel_ns = (work.options.from_ns + work.options.to_ns) / 2;

	return work.graph ? GRAPH_KERNELS * kernel_ns : kernel_ns;
}

CUstream work_launch(uint64_t number)
{
	CUstream stream = work.streams[number % (uint64_t)work.options.streams];

	if (work.graph)
		CALL(cuGraphLaunch, work.graph, stream);
	else if (is_mode("copy"))
		CALL(cuMemcpyDtoDAsync_v2, work.to, work.from, COPY_BYTES, stream);
	else
		launch_kernel(number % (uint64_t)work.options.kinds, stream);
	return stream;
}

void work_wait(void)
{
	for (int i = 0; i < work.options.streams; i++)
		CALL(cuStreamSynchronize, work.streams[i]);
}

void work_beside(void)
{
	CUevent event = work.beside.events[work.beside.count % BESIDE_IN_FLIGHT];
	CUstream stream = work.beside.stream;

	if (!work.options.beside || !work_is_done(event, false))
		return;
	if (work.beside.kernel_ns)
		launch_plainly(work.functions[work.options.kinds], 1,
			       loops_of(work.beside.kernel_ns), work.beside.kernel_ns, stream);
	else
		CALL(cuMemcpyHtoDAsync_v2, work.beside.to, work.beside.from, BESIDE_BYTES, stream);
	work_record(event, stream);
	work.beside.count++;
}

uint64_t work_beside_count(void)
{
	return work.beside.count;
}

CUevent work_event(void)
{
	CUevent event;

	CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
	return event;
}

void work_record(CUevent event, CUstream stream)
{
	CALL(cuEventRecord, event, stream);
}

bool work_is_done(CUevent event, bool wait)
{
	CUresult result = wait ? cu.cuEventSynchronize(event) : cu.cuEventQuery(event);

	if (result == CUDA_ERROR_NOT_READY)
		return false;
	check(result, "cuEventQuery");
	return true;
}
