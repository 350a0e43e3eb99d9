/*
 * A program that, once it has used each call, gives up every system call but read, write and exit
 * (seccomp's strict mode: any other kills it), and then continues to allocate, free and launch,
 * with LIVE existing allocations. Its regular exit is the proof.
 *
 * usage: quiet-calls LIVE
 */
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream);
int cuMemFreeAsync(unsigned long long address, void *stream);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		   unsigned int block_x, unsigned int block_y, unsigned int block_z,
		   unsigned int shared_bytes, void *stream, void **parameters, void **extra);

enum { ROUNDS = 20000 };

static void must(int good, const char *what)
{
	if (!good) {
		if (write(2, what, __builtin_strlen(what)) < 0)
			abort();
		syscall(SYS_exit, 1);
	}
}

static void use_each(unsigned long long *live, unsigned long count, unsigned long round)
{
	unsigned long long *victim = &live[round * 7919 % count], ordered;

	must(!cuMemFree_v2(*victim), "cuMemFree");
	must(!cuMemAlloc_v2(victim, 512 + round % 8 * 512), "cuMemAlloc");
	must(!cuMemAllocAsync(&ordered, 512 + round % 8 * 512, NULL), "cuMemAllocAsync");
	must(!cuMemFreeAsync(ordered, NULL), "cuMemFreeAsync");
	must(!cuLaunchKernel(live, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

int main(int argc, char **argv)
{
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1, round = 0;
	unsigned long long *live = calloc(count, sizeof(*live));
	void *context;

	must(live && !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) &&
		 !cuCtxSetCurrent(context),
	     "begin");
	for (unsigned long i = 0; i < count; i++)
		must(!cuMemAlloc_v2(&live[i], 512 + i % 8 * 512), "cuMemAlloc");
	for (; round < 1000; round++)
		use_each(live, count, round);
	must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), "prctl");
	for (; round < ROUNDS; round++)
		use_each(live, count, round);
	syscall(SYS_exit, 0);
}
