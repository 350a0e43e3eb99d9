/* Threads that fill and empty the null driver's device: never over its size, and empty at the end.
 */
#include "null_entry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 8, ROUNDS = 20000, EACH = 24, BYTES = 2 << 20 };

static uint64_t held_bytes;
static size_t total_bytes;

static void must(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "%s\n", what);
		exit(1);
	}
}

static void *thread_body(void *unused)
{
	CUdeviceptr address[EACH];
	CUcontext context;

	must(!cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context), "context");
	for (int round = 0; round < ROUNDS; round++) {
		int count = 0;
		CUdeviceptr small = 0;

		while (count < EACH && !cuMemAlloc_v2(&address[count], BYTES)) {
			must(__atomic_add_fetch(&held_bytes, BYTES, __ATOMIC_SEQ_CST) <=
				 total_bytes,
			     "over the device's size");
			count++;
		}
		/* Small ones come and go between; only whole blocks are counted. */
		if (cuMemAlloc_v2(&small, 1 + round % 4096) == CUDA_SUCCESS)
			must(!cuMemFree_v2(small), "a small allocation is lost");
		while (count) {
			__atomic_sub_fetch(&held_bytes, BYTES, __ATOMIC_SEQ_CST);
			must(!cuMemFree_v2(address[--count]), "an allocation is lost");
		}
	}
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];
	CUcontext context;
	size_t free_bytes;

	must(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context) &&
		 !cuMemGetInfo_v2(&free_bytes, &total_bytes),
	     "begin");
	for (int i = 0; i < THREADS; i++)
		must(!pthread_create(&threads[i], NULL, thread_body, NULL), "thread");
	for (int i = 0; i < THREADS; i++)
		must(!pthread_join(threads[i], NULL), "thread");
	must(!cuMemGetInfo_v2(&free_bytes, &total_bytes) && free_bytes == total_bytes,
	     "not everything came back");
	return 0;
}
