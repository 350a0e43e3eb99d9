/*
 * Measures launches of 15 kinds of short kernels on a GPU that works, and prints NAME NANOSECONDS
 * CALIBRATION. CALIBRATION is the time of a driver call that the library does not hook, measured
 * between the launches. It shows the machine's speed. Both are the least means of many passes.
 *
 * usage: bench-launches PASSES
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load/work.h"

enum { KINDS = 15, BATCHES = 20, LAUNCHES = 300, KERNEL_NS = 300, CALIBRATIONS = 3000 };

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Returns the time of the launches, without the waits for the GPU. A pass submits two milliseconds
 * of work, so it includes what the library does each millisecond. */
static double launches_ns(void)
{
	double took_ns = 0, from_ns;

	for (int batch = 0; batch < BATCHES; batch++) {
		from_ns = now_ns();
		for (uint64_t i = 0; i < LAUNCHES; i++)
			work_launch(i);
		took_ns += now_ns() - from_ns;
		work_wait();
	}
	return took_ns / (BATCHES * LAUNCHES);
}

int main(int argc, char **argv)
{
	const struct work_options options = {"launch", KERNEL_NS, KERNEL_NS + KINDS, KINDS, 1,
					     1,	       NULL};
	long passes = argc > 1 ? atol(argv[1]) : 100;
	double best_ns = 1e9, best_call_ns = 1e9;
	__typeof__(&cuDeviceGetCount) call;
	int count;

	work_prepare(&options);
	*(void **)&call = work_find("cuDeviceGetCount");
	for (long pass = 0; pass < passes; pass++) {
		double from_ns = now_ns(), call_ns, ns;

		for (int i = 0; i < CALIBRATIONS; i++)
			call(&count);
		call_ns = (now_ns() - from_ns) / CALIBRATIONS;
		ns = launches_ns();
		best_ns = ns < best_ns ? ns : best_ns;
		best_call_ns = call_ns < best_call_ns ? call_ns : best_call_ns;
	}
	printf("launch_of_15_kinds %.3f %.3f\n", best_ns, best_call_ns);
	return 0;
}
