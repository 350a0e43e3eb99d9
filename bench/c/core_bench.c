/*
 * The cost of a reserve and refund pair beside one plain atomic pair, a robust mutex pair and
 * nothing. Prints nanoseconds per pair, the best of several passes: NAME NS.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vgpu/region.h"

#define PASSES 7

static uint64_t plain_bytes;
static volatile uint64_t nothing_bytes;
static pthread_mutex_t mutex;

static void pair_nothing(void)
{
	nothing_bytes = nothing_bytes;
}

static void pair_plain(void)
{
	__atomic_add_fetch(&plain_bytes, 512, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&plain_bytes, 512, __ATOMIC_SEQ_CST);
}

static void pair_mutex(void)
{
	for (int i = 0; i < 2; i++) {
		pthread_mutex_lock(&mutex);
		plain_bytes += i ? 0 - 512 : 512;
		pthread_mutex_unlock(&mutex);
	}
}

static void pair_reserve(void)
{
	if (vgpu_reserve(0, 512) != VGPU_OK)
		abort();
	vgpu_refund(0, 512);
}

static double best_ns(void (*pair)(void), long pairs)
{
	double best = 1e9;

	for (int pass = 0; pass < PASSES; pass++) {
		struct timespec from, to;
		double ns;

		clock_gettime(CLOCK_MONOTONIC, &from);
		for (long i = 0; i < pairs; i++)
			pair();
		clock_gettime(CLOCK_MONOTONIC, &to);
		ns = ((double)(to.tv_sec - from.tv_sec) * 1e9 +
		      (double)(to.tv_nsec - from.tv_nsec)) /
		     (double)pairs;
		best = ns < best ? ns : best;
	}
	return best;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*pair)(void);
	} rows[] = {
	    {"nothing", pair_nothing},
	    {"plain_atomic", pair_plain},
	    {"robust_mutex", pair_mutex},
	    {"reserve_refund", pair_reserve},
	};
	long pairs = argc > 1 ? atol(argv[1]) : 1000000;
	pthread_mutexattr_t attributes;
	enum vgpu_result result;
	struct vgpu_error error;
	char text[512];

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&mutex, &attributes);
	result = vgpu_attach(&error);
	if (result != VGPU_OK) {
		fprintf(stderr, "%s\n", vgpu_error_text(&error, text, sizeof(text)));
		return 1;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		printf("%s %.2f\n", rows[i].name, best_ns(rows[i].pair, pairs));
	return 0;
}
