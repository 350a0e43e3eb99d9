/*
 * Arguments at and past the edges of what the driver documents: sizes whose sums wrap, flags that
 * exclude each other, launches that ask for what is not simulated. `cuda_edges NAME`, as
 * cuda_check.
 */
#define _GNU_SOURCE
#include "cuda_entry.h"
#include "want.h"

#include <pthread.h>
#include <string.h>

#define HUGE_BYTES (SIZE_MAX / 2 + 1) /* twice that is 0 */

static const char ptx_text[] = ".version 8.0\n"
			       ".target sm_80\n"
			       ".visible .entry brief() { ret; }\n";

static void begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
}

static CUfunction brief(void)
{
	CUfunction function;
	CUmodule module;

	OK(cuModuleLoadData(&module, ptx_text));
	OK(cuModuleGetFunction(&function, module, "brief"));
	return function;
}

/* Rows of 16 bytes within `address`; the caller makes one member wrong. */
static CUDA_MEMCPY2D rectangle(CUdeviceptr address)
{
	return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = address,
			       .srcPitch = 64,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = address + 2048,
			       .dstPitch = 64,
			       .WidthInBytes = 16,
			       .Height = 3};
}

static void check_rectangles(void)
{
	CUdeviceptr address, before;
	CUDA_MEMCPY2D copy;

	begin();
	OK(cuMemAlloc_v2(&before, 4096));
	OK(cuMemAlloc_v2(&address, 4096));
	copy = rectangle(address);
	OK(cuMemcpy2D_v2(&copy));
	copy.srcY = 29;
	OK(cuMemcpy2D_v2(&copy));
	/* The last row begins inside and ends behind the last byte. */
	copy.dstDevice = address;
	copy.srcY = 61;
	copy.srcXInBytes = 49;
	copy.srcPitch = 65;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);

	copy = rectangle(address);
	copy.dstPitch = HUGE_BYTES;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	/* More than CU_DEVICE_ATTRIBUTE_MAX_PITCH, though the one row does not need it. */
	copy = rectangle(address);
	copy.srcPitch = 2147483648u;
	copy.Height = 1;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	copy = rectangle(address);
	copy.Height = ((size_t)1 << 58) + 1; /* times the pitch: 0 */
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	copy = rectangle(address);
	copy.dstY = (size_t)1 << 58;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	copy = rectangle(address);
	copy.dstXInBytes = SIZE_MAX - 15;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	copy = rectangle(address);
	copy.srcMemoryType = CU_MEMORYTYPE_HOST;
	copy.srcHost = NULL;
	copy.srcY = 1;
	WANT(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);

	OK(cuMemsetD2D8_v2(address, 64, 1, 16, 3));
	WANT(cuMemsetD2D8_v2(address, HUGE_BYTES, 1, 16, 3), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMemsetD2D32_v2(address, 64, 1, 4, ((size_t)1 << 58) + 1), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMemsetD32_v2(address, 1, SIZE_MAX / 4 + 2), CUDA_ERROR_INVALID_VALUE);
}

static void check_flags(void)
{
	CUcontext context;
	CUevent event;

	begin();
	OK(cuEventCreate(&event, 0));
	/* Both "external" flags are invalid outside of a capture. */
	WANT(cuEventRecordWithFlags(event, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	WANT(cuStreamWaitEvent(NULL, event, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuEventRecordWithFlags(event, NULL, 0));
	OK(cuStreamWaitEvent(NULL, event, 0));
	for (unsigned int schedule = 0; schedule < 8; schedule++) {
		CUresult wanted = schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4
				      ? CUDA_SUCCESS
				      : CUDA_ERROR_INVALID_VALUE;

		WANT(cuCtxSetFlags(schedule | 8), wanted);
		WANT(cuDevicePrimaryCtxSetFlags_v2(1, schedule), wanted);
		WANT(cuCtxCreate_v2(&context, schedule, 1), wanted);
		if (wanted == CUDA_SUCCESS)
			OK(cuCtxDestroy_v2(context));
	}
}

/* A reset takes the memory and releases nothing. */
static void check_reset(void)
{
	unsigned int flags;
	CUcontext context;
	CUdeviceptr address;
	int active;

	begin();
	OK(cuMemAlloc_v2(&address, 1 << 20));
	OK(cuDevicePrimaryCtxReset_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	WANT(active, 0);
	WANT(cuMemFree_v2(address), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	WANT(active, 1);
	OK(cuDevicePrimaryCtxReset_v2(0));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	WANT(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

static pthread_barrier_t together;

static void *reset_and_retain(void *unused)
{
	CUcontext context;

	pthread_barrier_wait(&together);
	OK(cuDevicePrimaryCtxReset_v2(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	return unused;
}

/* Memory granted to the context's earlier life is gone, though the handle is alive again. */
static void check_reset_beside_allocation(void)
{
	enum { ROUNDS = 500 };
	size_t all, free_now, total;

	begin();
	OK(cuMemGetInfo_v2(&all, &total));
	WANT(pthread_barrier_init(&together, NULL, 2), 0);
	for (int round = 0; round < ROUNDS; round++) {
		CUdeviceptr address;
		pthread_t thread;
		CUresult allocated, freed;

		WANT(pthread_create(&thread, NULL, reset_and_retain, NULL), 0);
		pthread_barrier_wait(&together);
		allocated = cuMemAlloc_v2(&address, 4096);
		WANT(pthread_join(thread, NULL), 0);
		WANT(allocated == CUDA_SUCCESS || allocated == CUDA_ERROR_CONTEXT_IS_DESTROYED, 1);
		freed = allocated == CUDA_SUCCESS ? cuMemFree_v2(address) : CUDA_SUCCESS;
		WANT(freed == CUDA_SUCCESS || freed == CUDA_ERROR_INVALID_VALUE, 1);
		OK(cuMemGetInfo_v2(&free_now, &total));
		WANT(free_now, all);
	}
}

static void check_launches(void)
{
	CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
	CUlaunchConfig config = {1, 1, 1, 1024, 1, 1, 0, NULL, &attribute, 1};
	CUfunction function;
	size_t room;
	int blocks;

	begin();
	function = brief();
	/* 108 multiprocessors with room for two blocks of 1024 threads each. */
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1024, 0));
	WANT(blocks, 2);
	OK(cuLaunchCooperativeKernel(function, 216, 1, 1, 1024, 1, 1, 0, NULL, NULL));
	WANT(cuLaunchCooperativeKernel(function, 217, 1, 1, 1024, 1, 1, 0, NULL, NULL),
	     CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	config.gridDimX = 217;
	OK(cuLaunchKernelEx(&config, function, NULL, NULL));
	attribute.value.cooperative = 1;
	WANT(cuLaunchKernelEx(&config, function, NULL, NULL),
	     CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	config.gridDimX = 1;
	OK(cuLaunchKernelEx(&config, function, NULL, NULL));

	attribute = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
	attribute.value.clusterDim.x = attribute.value.clusterDim.y = 1;
	attribute.value.clusterDim.z = 1;
	OK(cuLaunchKernelEx(&config, function, NULL, NULL));
	attribute.value.clusterDim.x = 2;
	WANT(cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
	/* Events that a launch would record: nobody may wait for one that never comes. */
	for (int id = 7; id <= 12; id += 5) {
		attribute = (CUlaunchAttribute){.id = id};
		WANT(cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
	}
	attribute = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
	OK(cuLaunchKernelEx(&config, function, NULL, NULL));
	config.attrs = NULL;
	WANT(cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_ERROR_INVALID_VALUE);

	/* With the card's reserve of 1 KiB per block, the first of these sums is 0. */
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, SIZE_MAX - 1023));
	WANT(blocks, 0);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, SIZE_MAX));
	WANT(blocks, 0);
	OK(cuOccupancyAvailableDynamicSMemPerBlock(&room, function, 1000, 32));
	WANT(room, 0);
	OK(cuCtxSynchronize());
}

static void check_attributes(void)
{
	unsigned int version;
	CUcontext context;
	CUdeviceptr address;
	uint64_t out;

	begin();
	OK(cuCtxGetApiVersion(NULL, &version));
	WANT(version, 3020);
	OK(cuCtxCreate_v4(&context, NULL, 0, 0));
	OK(cuCtxGetApiVersion(context, &version));
	WANT(version, 3020);
	OK(cuCtxCreate(&context, 0, 0));
	OK(cuCtxGetApiVersion(context, &version));
	WANT(version, 3010);
	OK(cuMemAlloc_v2(&address, 1));
	/* Of mappings, which are not simulated; and one that CUDA 13.0 has not. */
	for (int attribute = 18; attribute <= 21; attribute++)
		WANT(cuPointerGetAttribute(&out, attribute, address), CUDA_ERROR_NOT_SUPPORTED);
	WANT(cuPointerGetAttribute(&out, 22, address), CUDA_ERROR_INVALID_VALUE);
	WANT(cuPointerGetAttribute(&out, 0, address), CUDA_ERROR_INVALID_VALUE);
}

static void check_compiler_options(void)
{
	char info[8] = "garbage", error[8] = "garbage";
	int options[] = {3, 4, 5, 6, 2};
	void *values[] = {info, (void *)sizeof(info), error, (void *)sizeof(error), &options};
	CUlibrary library;
	CUmodule module;

	begin();
	OK(cuModuleLoadDataEx(&module, ptx_text, 5, options, values));
	WANT(strlen(info) + strlen(error), 0);
	WANT((uintptr_t)values[1] | (uintptr_t)values[3] | (uintptr_t)values[4], 0);
	/* A buffer of no bytes is not written to. */
	info[0] = 'g';
	OK(cuLibraryLoadData(&library, ptx_text, options, values, 5, NULL, NULL, 0));
	WANT(info[0], 'g');
	WANT(cuModuleLoadDataEx(&module, ptx_text, 1, NULL, values), CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} checks[] = {
	    {"rectangles", check_rectangles},
	    {"flags", check_flags},
	    {"reset", check_reset},
	    {"reset-beside-allocation", check_reset_beside_allocation},
	    {"launches", check_launches},
	    {"attributes", check_attributes},
	    {"compiler-options", check_compiler_options},
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
