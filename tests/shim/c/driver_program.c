/*
 * A program as users write it: linked with -lcuda, without any knowledge of a limit. It allocates
 * from many processes and threads at once.
 *
 *   race PROCESSES ROUNDS   for the last free block; prints the rounds won by no process, by one
 *                           and by more, and the most bytes that all held at a time
 *   kill PROCESSES WIDTH    kills that many during allocations, WIDTH of them at a time
 *   threads COUNT           COUNT threads start CUDA at once; prints their bytes, then waits
 *   storm COUNT OPERATIONS MOST_BYTES   random sizes in COUNT threads; prints what was free
 *                           before and after, and the allocations that were made and refused
 *   fork COUNT              COUNT children while a thread allocates; each allocates for itself
 */
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

/* From cuda.h. */
typedef struct CUctx_st *CUcontext;
int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);

enum { OUT_OF_MEMORY = 2, BLOCK_BYTES = 2 << 20, HELD = 64, MAX_LATENCY_NS = 1000000 };

/* Memory shared by the processes. `arrived` counts arrivals at the barrier and never decreases. */
static struct {
	uint64_t arrived, wins, held_bytes, most_held_bytes, won_by[3];
	uint64_t ready[MOST_THREADS];
} *arena;

static CUcontext context;

static void begin(void)
{
	MUST(!cuInit(0));
	MUST(!cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
}

static void await(const uint64_t *counter, uint64_t least)
{
	while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least)
		sched_yield();
}

static void barrier(uint64_t processes)
{
	uint64_t ticket = __atomic_add_fetch(&arena->arrived, 1, __ATOMIC_ACQ_REL);

	await(&arena->arrived, (ticket + processes - 1) / processes * processes);
}

/* Allocate, then add to the count of all processes. So the count never exceeds the driver's use. */
static int allocate(unsigned long long *address, size_t bytes)
{
	int code = cuMemAlloc_v2(address, bytes);
	uint64_t held, most = __atomic_load_n(&arena->most_held_bytes, __ATOMIC_ACQUIRE);

	MUST(!code || code == OUT_OF_MEMORY);
	if (code)
		return 0;
	held = __atomic_add_fetch(&arena->held_bytes, bytes, __ATOMIC_ACQ_REL);
	while (held > most && !__atomic_compare_exchange_n(&arena->most_held_bytes, &most, held, 0,
							   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	return 1;
}

static void release(unsigned long long address, size_t bytes)
{
	__atomic_sub_fetch(&arena->held_bytes, bytes, __ATOMIC_ACQ_REL);
	MUST(!cuMemFree_v2(address));
}

/* Each racer's driver has a different latency, from zero to a millisecond. */
static void racer(uint64_t index, uint64_t processes, int rounds)
{
	unsigned long long base, address;
	size_t free_bytes, total_bytes;
	char latency_ns[32];
	int won;

	snprintf(latency_ns, sizeof(latency_ns), "%" PRIu64,
		 index * MAX_LATENCY_NS / (processes - 1));
	setenv("NULL_DRIVER_LATENCY_NS", latency_ns, 1);
	begin();
	MUST(!cuMemGetInfo_v2(&free_bytes, &total_bytes));
	barrier(processes);
	if (index == 0)
		MUST(allocate(&base, total_bytes - BLOCK_BYTES));
	while (rounds--) {
		barrier(processes);
		won = allocate(&address, BLOCK_BYTES);
		__atomic_add_fetch(&arena->wins, (uint64_t)won, __ATOMIC_ACQ_REL);
		barrier(processes);
		if (index == 0) {
			arena->won_by[arena->wins > 2 ? 2 : arena->wins]++;
			arena->wins = 0;
		}
		if (won)
			release(address, BLOCK_BYTES);
	}
	_exit(0);
}

static int race(uint64_t processes, int rounds)
{
	int failed = 0, status;

	for (uint64_t index = 0; index < processes; index++)
		if (fork() == 0)
			racer(index, processes, rounds);
	while (wait(&status) > 0)
		failed |= status;
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", arena->won_by[0],
	       arena->won_by[1], arena->won_by[2], arena->most_held_bytes);
	return failed != 0;
}

static unsigned long operations = ULONG_MAX, most_bytes = 8 << 20, made, refused;
static uint64_t random_state = 2463534242;

/* Sizes are from 1 byte to the maximum, and each power of two is equally likely. */
static void churn(uint64_t random)
{
	unsigned long long live[HELD] = {0}, *one;
	unsigned int orders = (unsigned int)__builtin_ctzl(most_bytes) + 1;

	for (unsigned long i = 0; i < operations; i++) {
		one = &live[next_random(&random) % HELD];
		if (*one) {
			MUST(!cuMemFree_v2(*one));
			*one = 0;
			continue;
		}
		uint64_t order = UINT64_C(1) << next_random(&random) % orders;
		int code = cuMemAlloc_v2(one, 1 + next_random(&random) % order);

		MUST(!code || code == OUT_OF_MEMORY);
		__atomic_fetch_add(code ? &refused : &made, 1, __ATOMIC_RELAXED);
	}
	for (int i = 0; i < HELD; i++)
		MUST(!live[i] || !cuMemFree_v2(live[i]));
}

static void *churn_forever(void *index)
{
	begin();
	__atomic_store_n(&arena->ready[(uintptr_t)index], 1, __ATOMIC_RELEASE);
	churn(random_state + (uintptr_t)index);
	return NULL;
}

static void kill_all(int width)
{
	pid_t pids[MOST_THREADS];

	for (int index = 0; index < width; index++) {
		arena->ready[index] = 0;
		pids[index] = fork();
		if (pids[index] == 0)
			churn_forever((void *)(uintptr_t)index);
	}
	for (int index = 0; index < width; index++)
		while (!__atomic_load_n(&arena->ready[index], __ATOMIC_ACQUIRE))
			MUST(waitpid(pids[index], NULL, WNOHANG) == 0);
	for (int index = 0; index < width; index++) {
		struct timespec pause = {0, (long)(next_random(&random_state) % 200000)};
		int status;

		nanosleep(&pause, NULL);
		kill(pids[index], SIGKILL);
		MUST(waitpid(pids[index], &status, 0) == pids[index] && WIFSIGNALED(status) &&
		     WTERMSIG(status) == SIGKILL);
	}
}

static int kill_many(int processes, int width)
{
	for (int left = processes; left > 0; left -= width)
		kill_all(left < width ? left : width);
	return 0;
}

static uint64_t thread_count;

static void *start_and_hold(void *unused)
{
	unsigned long long address;

	barrier(thread_count);
	begin();
	MUST(allocate(&address, BLOCK_BYTES));
	return unused;
}

static int threads(int count)
{
	thread_count = (uint64_t)count;
	run_threads(count, start_and_hold);
	printf("%" PRIu64 "\n", arena->held_bytes);
	fflush(stdout);
	getchar();
	return 0;
}

static int fork_meanwhile(int count)
{
	unsigned long long address;
	pthread_t busy;
	int status;

	begin();
	MUST(!pthread_create(&busy, NULL, churn_forever, NULL));
	await(&arena->ready[0], 1);
	while (count--) {
		if (fork() == 0) {
			MUST(!cuMemAlloc_v2(&address, BLOCK_BYTES));
			MUST(!cuMemFree_v2(address));
			_exit(0);
		}
		MUST(wait(&status) > 0 && status == 0);
	}
	return 0;
}

static void *storm_on(void *number)
{
	MUST(!cuCtxSetCurrent(context));
	churn(((uint64_t)(uintptr_t)number + 1) * UINT64_C(0x9e3779b97f4a7c15));
	return NULL;
}

static int storm(int count)
{
	size_t before, after, total;

	begin();
	MUST(!cuMemGetInfo_v2(&before, &total));
	operations /= (unsigned long)count;
	run_threads(count, storm_on);
	MUST(!cuMemGetInfo_v2(&after, &total));
	printf("%zu %zu %lu %lu\n", before, after, made, refused);
	return 0;
}

int main(int argc, char **argv)
{
	int first = argc > 2 ? atoi(argv[2]) : 0, second = argc > 3 ? atoi(argv[3]) : 0;

	arena =
	    mmap(NULL, sizeof(*arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(argc > 2 && arena != MAP_FAILED);
	if (!strcmp(argv[1], "race"))
		return race((uint64_t)first, second);
	if (!strcmp(argv[1], "kill"))
		return kill_many(first, second);
	if (!strcmp(argv[1], "threads"))
		return threads(first);
	if (!strcmp(argv[1], "storm") && argc == 5) {
		operations = strtoul(argv[3], NULL, 10);
		most_bytes = strtoul(argv[4], NULL, 10);
		return storm(first);
	}
	return fork_meanwhile(first);
}
