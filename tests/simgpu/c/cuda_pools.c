/* Pools, captures and graphs from C, for the sanitizers: `cuda_pools NAME`, as cuda_check. */
#include "cuda_entry.h"
#include "want.h"

#include <pthread.h>
#include <string.h>

#define MIB	((size_t)1 << 20)
#define THREADS 4
#define ROUNDS	200

static void begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
}

static uint64_t reserved(CUmemoryPool pool)
{
	uint64_t bytes;

	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
	return bytes;
}

static uint64_t used(CUmemoryPool pool)
{
	uint64_t bytes;

	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
	return bytes;
}

/* Pieces of all sizes, freed in another order than taken, do not overlap and leave nothing. */
static void *churn(void *unused)
{
	CUdeviceptr live[16] = {0};
	uint64_t random = 88172645463325252u ^ (uintptr_t)&live;
	CUcontext context;
	CUstream stream;

	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < ROUNDS * 16; i++) {
		CUdeviceptr *one = &live[i % 16];
		size_t bytes;

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		bytes = 1 + random % (3 * MIB);
		if (*one) {
			WANT(*(uint64_t *)(uintptr_t)*one, *one);
			OK(random % 3 ? cuMemFreeAsync(*one, stream) : cuMemFree_v2(*one));
		}
		OK(cuMemAllocAsync(one, bytes + 8, stream));
		*(uint64_t *)(uintptr_t)*one = *one;
		if (random % 16 == 0)
			OK(cuStreamSynchronize(stream));
	}
	for (int i = 0; i < 16; i++)
		OK(cuMemFreeAsync(live[i], stream));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return unused;
}

static void check_threads(void)
{
	pthread_t threads[THREADS];
	CUmemoryPool pool;

	begin();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_create(&threads[i], NULL, churn, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		WANT(pthread_join(threads[i], NULL), 0);
	OK(cuCtxSynchronize());
	WANT(used(pool), 0);
	WANT(reserved(pool), 0);
}

static void check_pools(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemPoolPtrExportData data;
	CUdeviceptr first, second;
	CUmemoryPool pool, imported;
	int fd;

	begin();
	OK(cuMemPoolCreate(&pool, &properties));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, 1, 0));
	OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(uintptr_t)fd, 1, 0));
	OK(cuMemAllocFromPoolAsync(&first, 3 * MIB, pool, NULL));
	OK(cuMemPoolExportPointer(&data, first));
	OK(cuMemPoolImportPointer(&second, imported, &data));
	WANT(reserved(imported), 32 * MIB);
	OK(cuMemPoolDestroy(pool));
	OK(cuMemFree_v2(first));
	OK(cuStreamSynchronize(NULL));
	memset((void *)(uintptr_t)second, 1, 3 * MIB);
	OK(cuMemFreeAsync(second, NULL));
	OK(cuMemPoolDestroy(imported));
	OK(cuMemAllocAsync(&first, 1, NULL));
	OK(cuDevicePrimaryCtxReset_v2(0));
	WANT(cuMemPoolTrimTo(imported, 0), CUDA_ERROR_INVALID_VALUE);
}

static CUgraphExec captured(CUstream stream, CUdeviceptr *kept)
{
	CUgraphExec exec;
	CUdeviceptr scratch;
	CUgraph graph;

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_RELAXED));
	OK(cuMemAllocAsync(&scratch, MIB, stream));
	OK(cuMemAllocAsync(kept, MIB, stream));
	OK(cuMemFreeAsync(scratch, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH));
	OK(cuGraphDestroy(graph));
	return exec;
}

static void check_graphs(void)
{
	uint64_t bytes;
	CUgraphExec exec;
	CUdeviceptr kept;
	CUcontext context;
	CUstream stream;

	begin();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 3; i++) {
		exec = captured(stream, &kept);
		OK(cuGraphLaunch(exec, stream));
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		OK(cuGraphExecDestroy(exec));
		memset((void *)(uintptr_t)kept, 1, MIB);
		OK(cuMemFreeAsync(kept, stream));
	}
	OK(cuDeviceGraphMemTrim(0));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
	WANT(bytes, 0);
	exec = captured(stream, &kept);
	OK(cuGraphUpload(exec, stream));
	OK(cuStreamBeginCapture(stream));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuCtxDestroy_v2(context));
	OK(cuDevicePrimaryCtxReset_v2(0));
	begin();
	WANT(cuMemFree_v2(kept), CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphExecDestroy(exec));
}

int main(int count, char **arguments)
{
	const struct {
		const char *name;
		void (*check)(void);
	} checks[] = {{"threads", check_threads}, {"pools", check_pools}, {"graphs", check_graphs}};

	for (size_t i = 0; count == 2 && i < sizeof(checks) / sizeof(*checks); i++) {
		if (strcmp(checks[i].name, arguments[1]) != 0)
			continue;
		checks[i].check();
		return 0;
	}
	return 2;
}
