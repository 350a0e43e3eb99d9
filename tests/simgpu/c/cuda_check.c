/*
 * A C program linked with libcuda: `cuda_check NAME` runs one check over the cards of $SIMGPU_DIR.
 *
 * Ends with 0 and prints nothing where the driver behaves; else says which line found what. Built
 * with the sanitizers too, so the checks go where memory is managed: many sizes, many threads,
 * contexts that vanish, texts that are not PTX.
 */
#define _GNU_SOURCE
#include "cuda_entry.h"
#include "want.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRANULE 512u
#define BLOCK	(2ull << 20) /* what the card gives at once */

static const char ptx_text[] = ".version 8.0\n"
			       ".target sm_80\n"
			       ".address_size 64\n"
			       "// simgpu: duration_ns=2000000\n"
			       ".visible .entry two_ms(.param .u64 a, .param .align 8 .b8 b[24])\n"
			       "{ .reg .b32 %r<2>; { ret; } }\n"
			       "// simgpu: duration_ns=3600000000000\n"
			       ".visible .entry hour() { ret; }\n"
			       ".visible .entry brief() .maxntid 64, 1, 1 { ret; }\n";

static uint64_t random_state = 88172645463325252ull;

/* xorshift; the same numbers every time. */
static uint64_t random_number(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static CUcontext begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

static size_t free_bytes(void)
{
	size_t free_now, total;

	OK(cuMemGetInfo_v2(&free_now, &total));
	return free_now;
}

struct live {
	CUdeviceptr address;
	size_t bytes;
};

/* The blocks that live allocations lie in, each counted once. */
static size_t blocks_bytes(const struct live *live, size_t count)
{
	size_t blocks = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t first = live[i].address / BLOCK;
		bool counted = false;

		for (size_t j = 0; j < i && !counted; j++)
			counted = live[j].address / BLOCK == first;
		if (live[i].address)
			blocks += (live[i].bytes + BLOCK - 1) / BLOCK - counted;
	}
	return blocks * BLOCK;
}

/* Random sizes and orders; every allocation keeps its own pattern, and the sum is exact. */
static void check_memory(void)
{
	enum { LIVE = 512, STEPS = 6000 };
	static struct live live[LIVE];
	size_t all;

	begin();
	all = free_bytes();
	for (int step = 0; step < STEPS; step++) {
		size_t i = random_number() % LIVE;
		uint64_t stamp[2];

		if (live[i].address) {
			uint64_t last = live[i].address + live[i].bytes - sizeof(stamp[1]);

			OK(cuMemcpyDtoH_v2(&stamp[0], live[i].address, sizeof(stamp[0])));
			OK(cuMemcpyDtoH_v2(&stamp[1], last, sizeof(stamp[1])));
			WANT(stamp[1], last);
			WANT(live[i].bytes < 16 || stamp[0] == live[i].address, true);
			OK(cuMemFree_v2(live[i].address));
			live[i].address = 0;
		} else {
			/* From 8 bytes to 8 MiB, every order of magnitude alike. */
			uint64_t last;

			live[i].bytes = 8 + random_number() % (8ull << random_number() % 21);
			OK(cuMemAlloc_v2(&live[i].address, live[i].bytes));
			WANT(live[i].address % GRANULE, 0);
			last = live[i].address + live[i].bytes - sizeof(last);
			OK(cuMemcpyHtoD_v2(live[i].address, &live[i].address, 8));
			OK(cuMemcpyHtoD_v2(last, &last, sizeof(last)));
		}
	}
	WANT(free_bytes(), all - blocks_bytes(live, LIVE));
	for (size_t i = 0; i < LIVE; i++)
		OK(cuMemFree_v2(live[i].address));
	WANT(free_bytes(), all);
}

/* A handle that is gone stays wrong when its place is taken again. */
static void check_handles(void)
{
	CUstream first, second;

	begin();
	OK(cuStreamCreate(&first, 0));
	OK(cuStreamDestroy_v2(first));
	OK(cuStreamCreate(&second, 0));
	WANT(first == second, false);
	WANT(cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamQuery(second));
	WANT(cuEventQuery((CUevent)(void *)second), CUDA_ERROR_INVALID_HANDLE);
}

/* What a context holds goes with it; its handles are wrong afterwards, wherever they are. */
static void check_contexts(void)
{
	CUcontext primary = begin();
	size_t all = free_bytes();

	for (int round = 0; round < 50; round++) {
		CUcontext context, popped;
		CUdeviceptr address;
		CUfunction function;
		CUmodule module;
		CUstream stream;
		CUevent event;

		OK(cuCtxCreate_v2(&context, 0, 0));
		OK(cuMemAlloc_v2(&address, 100000 + (size_t)round * 100000));
		OK(cuStreamCreate(&stream, 0));
		OK(cuEventCreate(&event, 0));
		OK(cuModuleLoadData(&module, ptx_text));
		OK(cuModuleGetFunction(&function, module, "brief"));
		OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		OK(cuEventRecord(event, stream));
		OK(cuCtxPushCurrent_v2(primary));
		OK(cuCtxDestroy_v2(context));
		WANT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
		WANT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
		WANT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
		WANT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
		WANT(cuCtxDestroy_v2(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
		WANT(free_bytes(), all);
		OK(cuCtxPopCurrent_v2(&popped));
		WANT(popped == primary, true);
		WANT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
		OK(cuCtxPopCurrent_v2(&popped));
		WANT(popped == context, true);
	}
	OK(cuDevicePrimaryCtxRelease_v2(0));
	WANT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	WANT(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

static void *thread_body(void *own_stack)
{
	CUcontext context, seen;
	CUdeviceptr address[20];
	CUfunction function;
	CUmodule module;
	CUstream stream;

	/* No thread inherits a current context. */
	OK(cuCtxGetCurrent(&seen));
	WANT(seen == NULL, true);
	WANT(cuMemAlloc_v2(&address[0], 1), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxCreate_v2(&context, 0, (CUdevice)((uintptr_t)own_stack % 2)));
	OK(cuModuleLoadData(&module, ptx_text));
	OK(cuModuleGetFunction(&function, module, "brief"));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 20; i++)
			OK(cuMemAlloc_v2(&address[i], 1000u << i % 12));
		OK(cuMemsetD8_v2(address[0], (unsigned char)round, 1000));
		OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		OK(cuStreamSynchronize(stream));
		for (int i = 0; i < 20; i++)
			OK(cuMemFree_v2(address[i]));
	}
	OK(cuCtxGetCurrent(&seen));
	WANT(seen == context, true);
	OK(cuCtxSynchronize());
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxGetCurrent(&seen));
	WANT(seen == NULL, true);
	return NULL;
}

static void check_threads(void)
{
	enum { THREADS = 8 };
	pthread_t threads[THREADS];
	size_t all;

	begin();
	all = free_bytes();
	for (uintptr_t i = 0; i < THREADS; i++)
		WANT(pthread_create(&threads[i], NULL, thread_body, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(threads[i], NULL), 0);
	WANT(free_bytes(), all);
}

static void in_child(CUdeviceptr address)
{
	CUcontext context;
	int count;

	WANT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
	WANT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	WANT(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
	WANT(cuMemFree_v2(address), CUDA_ERROR_NOT_INITIALIZED);
	_exit(0);
}

static void expect_child(pid_t child)
{
	int status;

	WANT(waitpid(child, &status, 0), child);
	WANT(status, 0);
}

/* A child, of fork or of a raw clone, has no driver; the parent's is untouched. */
static void check_fork(void)
{
	CUdeviceptr address;
	size_t before;
	pid_t child;

	begin();
	OK(cuMemAlloc_v2(&address, 1 << 20));
	before = free_bytes();
	child = fork();
	if (child == 0)
		in_child(address);
	expect_child(child);
	child = (pid_t)syscall(SYS_clone, 17 /* SIGCHLD */, NULL, NULL, NULL, NULL);
	if (child == 0)
		in_child(address);
	expect_child(child);
	WANT(free_bytes(), before);
	OK(cuMemFree_v2(address));
}

/* A parent that never initialised leaves its child free to do so. */
static void check_fork_before(void)
{
	pid_t child = fork();

	if (child == 0) {
		begin();
		WANT(free_bytes() > 0, true);
		_exit(0);
	}
	expect_child(child);
	begin();
}

/* The 32-bit interface of before CUDA 3.2: addresses that fit, and the same bytes. */
static void check_old_interface(void)
{
	CUdeviceptr_v1 address, base;
	unsigned int bytes, pitch, free_now, total;
	size_t all;
	char text[4] = "abc", back[4];

	begin();
	all = free_bytes();
	OK(cuMemAlloc(&address, 1000));
	WANT(free_bytes(), all - BLOCK);
	OK(cuMemcpyHtoD(address + 3, text, 4));
	OK(cuMemcpyDtoH(back, address + 3, 4));
	WANT(strcmp(back, text), 0);
	OK(cuMemGetAddressRange(&base, &bytes, address + 999));
	WANT(base, address);
	WANT(bytes, 1000);
	WANT(cuMemGetAddressRange(&base, &bytes, address + 1000), CUDA_ERROR_NOT_FOUND);
	OK(cuMemGetInfo(&free_now, &total));
	WANT(total, UINT32_MAX);
	OK(cuMemFree(address));
	OK(cuMemAllocPitch(&address, &pitch, 513, 3, 4));
	WANT(pitch, 1024);
	WANT(free_bytes(), all - BLOCK);
	OK(cuMemFree(address));
	WANT(free_bytes(), all);
}

/*
 * What is done is done in order, and what is not says so. The hour-long kernel is never waited for:
 * a process that ends takes its work off the card.
 */
static void check_streams(void)
{
	void *parameters[2] = {NULL, NULL};
	CUfunction two_ms, hour;
	CUstream other, free_running;
	CUevent start, end;
	CUmodule module;
	float ms;

	begin();
	OK(cuModuleLoadData(&module, ptx_text));
	OK(cuModuleGetFunction(&two_ms, module, "two_ms"));
	OK(cuModuleGetFunction(&hour, module, "hour"));
	OK(cuStreamCreate(&other, 0));
	OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&start, 0));
	OK(cuEventCreate(&end, 0));
	OK(cuEventRecord(start, other));
	for (int i = 0; i < 5; i++)
		OK(cuLaunchKernel(two_ms, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
	OK(cuEventRecord(end, other));
	OK(cuStreamWaitEvent(free_running, end, 0));
	OK(cuStreamSynchronize(free_running));
	OK(cuStreamQuery(other));
	OK(cuEventQuery(end));
	OK(cuEventElapsedTime(&ms, start, end));
	WANT(ms >= 10, true);
	OK(cuLaunchKernel(two_ms, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(NULL));

	OK(cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
	OK(cuEventRecord(end, other));
	WANT(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
	WANT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	WANT(cuStreamQuery(free_running), CUDA_SUCCESS);
	WANT(cuStreamQuery_ptsz(NULL), CUDA_SUCCESS);
	WANT(cuEventQuery(end), CUDA_ERROR_NOT_READY);
	WANT(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
	OK(cuStreamWaitEvent(free_running, end, 0));
	WANT(cuStreamQuery(free_running), CUDA_ERROR_NOT_READY);
	OK(cuLaunchKernel(hour, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	WANT(cuStreamQuery_ptsz(NULL), CUDA_ERROR_NOT_READY);
}

/* Texts cut anywhere and with any byte changed are loaded or refused, and nothing else. */
static void check_ptx(void)
{
	char text[sizeof(ptx_text)];
	CUmodule module;
	unsigned int loaded = 0;

	begin();
	for (size_t cut = 0; cut < sizeof(ptx_text); cut++) {
		memcpy(text, ptx_text, cut);
		memset(text + cut, 0, sizeof(text) - cut);
		if (cuModuleLoadData(&module, text) == CUDA_SUCCESS)
			OK(cuModuleUnload(module));
	}
	for (int round = 0; round < 20000; round++) {
		memcpy(text, ptx_text, sizeof(text));
		for (uint64_t changes = 1 + random_number() % 3; changes; changes--)
			text[random_number() % (sizeof(text) - 1)] =
			    " .,(){}[]/*\"9azx\n"[random_number() % 17];
		if (cuModuleLoadData(&module, text) == CUDA_SUCCESS) {
			OK(cuModuleUnload(module));
			loaded++;
		}
	}
	WANT(loaded > 1000, true);
}

/* A million live allocations would be slow over the daemon; what a process maps must not grow. */
static void check_many(void)
{
	enum { COUNT = 5000 };
	static CUdeviceptr address[COUNT];
	char line[256];
	FILE *maps;
	int lines = 0;

	begin();
	for (int i = 0; i < COUNT; i++)
		OK(cuMemAlloc_v2(&address[i], 1));
	maps = fopen("/proc/self/maps", "re");
	while (fgets(line, sizeof(line), maps))
		lines++;
	fclose(maps);
	WANT(lines < 500, true);
	for (int i = 0; i < COUNT; i++)
		OK(cuMemFree_v2(address[i]));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} checks[] = {
	    {"memory", check_memory},
	    {"handles", check_handles},
	    {"contexts", check_contexts},
	    {"threads", check_threads},
	    {"fork", check_fork},
	    {"fork-before", check_fork_before},
	    {"old-interface", check_old_interface},
	    {"streams", check_streams},
	    {"ptx", check_ptx},
	    {"many", check_many},
	};

	for (size_t i = 0; i < sizeof(checks) / sizeof(*checks); i++) {
		if (argc == 2 && strcmp(argv[1], checks[i].name) == 0) {
			checks[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no such check\n");
	return 2;
}
