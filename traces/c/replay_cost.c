/*
 * Measures the library's time: makes calls as a program does, and directly in the driver.
 */
#define _GNU_SOURCE
#include "replay.h"

#include <stdio.h>
#include <time.h>

#define PIECE 32 /* steps */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t timed(uint32_t first, uint32_t last, word_function *const *functions)
{
	uint64_t from_ns = now_ns();

	for (uint32_t step = first; step < last; step++)
		make(step, functions);
	return now_ns() - from_ns;
}

/* A refused step is not measured: in it, the library waits for memory that may be freed. */
static bool is_refused(uint32_t step)
{
	return replay.operations[replay.steps[step]].result == OUT_OF_MEMORY;
}

/*
 * Measures all runs in one thread. In the driver, which has no state, a run can be repeated. In the
 * library it is made once. A call that was refused memory is a separate run, which is skipped.
 */
void cost_of_runs(void)
{
	for (uint32_t i = 0; i < replay.run_count; i++) {
		uint32_t first = replay.runs[i].first, last = first + replay.runs[i].count;
		uint64_t direct_ns = 0, ns;

		if (first == last || is_refused(first))
			continue;
		for (int warming = 0; warming < 4; warming++)
			direct_ns = timed(first, last, replay.direct);
		ns = timed(first, last, replay.functions);
		printf("run %u %llu %llu\n", i, (unsigned long long)ns,
		       (unsigned long long)direct_ns);
	}
}

/*
 * The steps are timed in short pieces, and the shortest time of each counts: some pass over a short
 * piece is not interrupted, but a pass over all steps always is. A few steps are repeated.
 */
void cost_of_part(uint32_t first, uint32_t last, uint32_t passes)
{
	uint32_t times = last - first < PIECE ? PIECE / (last - first) : 1;
	double sum_ns[2] = {0};

	for (uint32_t step = 0; step < first; step++)
		if (!is_refused(step))
			make(step, replay.functions);
	for (uint32_t from = first, to; from < last; from = to) {
		uint64_t least_ns[2] = {UINT64_MAX, UINT64_MAX};

		to = last - from < PIECE ? last : from + PIECE;
		for (uint32_t pass = 0; pass < 2 * passes; pass++) {
			uint64_t ns = 0;

			for (uint32_t time = 0; time < times; time++)
				ns += timed(from, to, pass % 2 ? replay.direct : replay.functions);
			if (ns < least_ns[pass % 2])
				least_ns[pass % 2] = ns;
		}
		for (int i = 0; i < 2; i++)
			sum_ns[i] += (double)least_ns[i] / times;
	}
	printf("part %.1f %.1f\n", sum_ns[0], sum_ns[1]);
}
