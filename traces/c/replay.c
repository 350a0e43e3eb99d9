/*
 * Makes the calls of a script in the recorded order, in the driver that the loader finds.
 *
 * usage: trace-replay SCRIPT TURNS [--other-size]
 *        trace-replay SCRIPT --cost
 *        trace-replay SCRIPT --cost FIRST LAST PASSES
 *
 * One run of calls is made at a time. TURNS is a file with the number of the next run, which all
 * processes of a recording map. Lines on stdout:
 *
 *   difference STEP RESULT ARGUMENT VALUE    if ARGUMENT is -1, the result differs
 *   checkpoint RUN                           the program then waits for a line on stdin
 *   refused STEP                             waits likewise, then ends (with --other-size only)
 *
 * --cost measures each run, or the steps from FIRST to LAST, with recorded_driver.c as the driver.
 * The first time is for calls as programs make them. The second time is for the same calls directly
 * in the driver. The process waits for no other process, and at no checkpoint.
 *
 *   run RUN NANOSECONDS NANOSECONDS
 *   part NANOSECONDS NANOSECONDS             the shortest of PASSES
 */
#define _GNU_SOURCE
#include "replay.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STOPPED	    UINT32_MAX
#define TURN_MOST_S 120

static uint32_t *turn; /* the number of the next run, in the mapped file TURNS */

static void pass_turn(uint32_t to)
{
	__atomic_store_n(turn, to, __ATOMIC_RELEASE);
	syscall(SYS_futex, turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Waits until the run's turn. Returns false if the replay was stopped. */
static bool wait_for(uint32_t own)
{
	const struct timespec most = {.tv_sec = TURN_MOST_S};
	uint32_t now;

	while ((now = __atomic_load_n(turn, __ATOMIC_ACQUIRE)) != own) {
		if (now == STOPPED)
			return false;
		if (syscall(SYS_futex, turn, FUTEX_WAIT, now, &most, NULL, 0) && errno == ETIMEDOUT)
			fail("no turn within %d s: %u, not %u", TURN_MOST_S, now, own);
	}
	return true;
}

/* Prints a line, and waits for the answer. No other run starts meanwhile. */
static void report(const char *what, uint32_t number)
{
	char line[16];

	printf("%s %u\n", what, number);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		fail("stdin ended");
}

static void execute(uint32_t number)
{
	const struct script_run *run = &replay.runs[number];

	for (uint32_t step = run->first; step < run->first + run->count; step++) {
		if (!make(step, replay.functions)) {
			report("refused", step);
			pass_turn(STOPPED);
			return;
		}
	}
	if (run->is_checkpoint)
		report("checkpoint", number);
	pass_turn(run->turn + 1);
}

static void *one_thread(void *number)
{
	uint32_t thread = (uint32_t)(uintptr_t)number;

	for (uint32_t i = 0; i < replay.run_count; i++)
		if (replay.runs[i].thread == thread) {
			if (!wait_for(replay.runs[i].turn))
				break;
			execute(i);
		}
	return NULL;
}

static void all_threads(void)
{
	pthread_t *threads = zeroed(replay.script->threads, sizeof(*threads));

	for (uintptr_t i = 2; i <= replay.script->threads; i++)
		if (pthread_create(&threads[i], NULL, one_thread, (void *)i))
			fail("a thread: %m");
	one_thread((void *)1);
	for (uintptr_t i = 2; i <= replay.script->threads; i++)
		pthread_join(threads[i], NULL);
}

static uint32_t number(const char *text)
{
	return (uint32_t)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
	bool is_cost = argc > 2 && strcmp(argv[2], "--cost") == 0;

	if (is_cost ? argc != 3 && argc != 6 : argc != 3 && argc != 4)
		fail("usage: trace-replay SCRIPT TURNS [--other-size] | "
		     "SCRIPT --cost [FIRST LAST PASSES]");
	load(argv[1]);
	replay.is_other_size = !is_cost && argc == 4 && strcmp(argv[3], "--other-size") == 0;
	resolve();
	if (is_cost && !replay.direct[0])
		fail("--cost: the driver is not recorded_driver.c");
	if (is_cost && argc == 3) {
		cost_of_runs();
	} else if (is_cost) {
		cost_of_part(number(argv[3]), number(argv[4]), number(argv[5]));
	} else {
		turn = map(argv[2], PROT_READ | PROT_WRITE, MAP_SHARED);
		all_threads();
	}
	return fflush(stdout) ? 1 : 0;
}
