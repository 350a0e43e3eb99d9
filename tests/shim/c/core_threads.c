/* Threads of one process reserve and refund on every GPU at once; for the sanitizers, and for the
 * sums. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core_test.h"
#include "vgpu/region.h"

#define MAX_THREADS 32

struct work {
	uint64_t seed;
	int rounds;
	int gpus;
};

static void *worker(void *argument)
{
	const struct work *work = argument;
	uint64_t random = work->seed;

	for (int round = 0; round < work->rounds; round++) {
		int gpu = round % work->gpus;
		uint64_t bytes;

		random = random * 6364136223846793005ULL + 1442695040888963407ULL;
		bytes = random >> 44;
		if (vgpu_reserve(gpu, bytes) != VGPU_OK)
			continue;
		if (vgpu_used_bytes(gpu) > vgpu_limit_bytes(gpu))
			abort();
		vgpu_refund(gpu, bytes);
	}
	return NULL;
}

/* threads COUNT ROUNDS GPUS: prints what is left on each GPU. */
int core_threads(int argc, char **argv)
{
	pthread_t threads[MAX_THREADS];
	struct work work[MAX_THREADS];
	int count, gpus;

	if (argc != 3)
		return 2;
	count = atoi(argv[0]);
	gpus = atoi(argv[2]);
	for (int i = 0; i < count; i++) {
		work[i] = (struct work){(uint64_t)i + 1, atoi(argv[1]), gpus};
		if (pthread_create(&threads[i], NULL, worker, &work[i]))
			return 1;
	}
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	for (int gpu = 0; gpu < gpus; gpu++)
		printf("%" PRIu64 "\n", vgpu_used_bytes(gpu));
	return 0;
}
