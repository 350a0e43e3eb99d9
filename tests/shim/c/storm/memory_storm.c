/*
 * Threads that allocate and free device memory of random sizes, as fast as they can, through the
 * wrappers, which are linked in so that sanitizers see them; nothing is ever charged past the
 * limit. Prints what was free before and after, and how many allocations were made and refused.
 *
 *	vgpu-memory-storm THREADS OPERATIONS MOST_BYTES
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "vgpu/region.h"

enum { LIVE = 64, MOST_THREADS = 64, OUT_OF_MEMORY = 2 };

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);

static unsigned long operations, made, refused;
static unsigned int orders; /* of magnitude, by powers of two */
static pthread_barrier_t start;
static void *context;
static int (*set_current)(void *context); /* not the library's: the driver's */

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* From 1 byte to the most, every order of magnitude alike. */
static size_t random_size(uint64_t *state)
{
	uint64_t most = UINT64_C(1) << next_random(state) % orders;

	return 1 + next_random(state) % most;
}

static void step(unsigned long long *one, uint64_t *state)
{
	int result;

	if (*one) {
		MUST(cuMemFree_v2(*one) == 0);
		*one = 0;
		return;
	}
	result = cuMemAlloc_v2(one, random_size(state));
	MUST(result == 0 || result == OUT_OF_MEMORY);
	MUST(vgpu_used_bytes(0) <= vgpu_limit_bytes(0));
	__atomic_fetch_add(result ? &refused : &made, 1, __ATOMIC_RELAXED);
	if (result)
		*one = 0;
}

static void *storm(void *argument)
{
	uint64_t state = ((uint64_t)(uintptr_t)argument + 1) * UINT64_C(0x9e3779b97f4a7c15);
	unsigned long long live[LIVE] = {0};

	MUST(set_current(context) == 0);
	pthread_barrier_wait(&start);
	for (unsigned long i = 0; i < operations; i++)
		step(&live[next_random(&state) % LIVE], &state);
	for (int i = 0; i < LIVE; i++)
		if (live[i])
			step(&live[i], &state);
	return NULL;
}

static size_t free_bytes(void)
{
	size_t free_now, total;

	MUST(cuMemGetInfo_v2(&free_now, &total) == 0);
	return free_now;
}

int main(int argc, char **argv)
{
	pthread_t threads[MOST_THREADS];
	uintptr_t count = argc == 4 ? strtoul(argv[1], NULL, 10) : 0;
	size_t before;
	void *driver;

	MUST(count > 0 && count <= MOST_THREADS);
	operations = strtoul(argv[2], NULL, 10) / count;
	orders = (unsigned int)__builtin_ctzl(strtoul(argv[3], NULL, 10)) + 1;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	MUST(driver);
	*(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
	MUST(set_current);
	MUST(cuInit(0) == 0);
	MUST(cuDevicePrimaryCtxRetain(&context, 0) == 0);
	MUST(set_current(context) == 0);
	before = free_bytes();
	MUST(pthread_barrier_init(&start, NULL, (unsigned int)count) == 0);
	for (uintptr_t i = 0; i < count; i++)
		MUST(pthread_create(&threads[i], NULL, storm, (void *)i) == 0);
	for (uintptr_t i = 0; i < count; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	printf("%zu %zu %lu %lu\n", before, free_bytes(), made, refused);
	return 0;
}
