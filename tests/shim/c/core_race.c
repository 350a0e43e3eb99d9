/*
 * Races for the last free bytes, and loops to be killed in; each with the naive rival it must beat.
 *
 *   race PROCESSES ROUNDS LIMIT_BYTES exact|check-first   prints rounds won by 0, by 1, by more,
 * over the limit loop SEED exact|two-words COUNTER_FILE                reserves and refunds at
 * random until killed
 *
 * check-first asks for room and allocates later, as upstream does; two-words adds to the counter
 * and to the process's own word one after the other.
 */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core_test.h"
#include "vgpu/region.h"

#define MAX_LATENCY_NS 1000000
#define BASE_BYTES     (UINT64_C(1) << 20)
#define MAX_WIDTH      64

/* Shared by the racers; `arrived` counts arrivals at the barrier and never decreases. */
struct arena {
	uint64_t arrived;
	uint64_t wins;
	uint64_t most_used_bytes;
	uint64_t naive_used_bytes;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void barrier(struct arena *arena, uint64_t processes)
{
	uint64_t ticket = __atomic_add_fetch(&arena->arrived, 1, __ATOMIC_ACQ_REL);
	uint64_t all = (ticket + processes - 1) / processes * processes;

	while (__atomic_load_n(&arena->arrived, __ATOMIC_ACQUIRE) < all)
		sched_yield();
}

/* The duration of a driver call. */
static void latency(uint64_t *random)
{
	struct timespec pause = {0, (long)(next_random(random) % MAX_LATENCY_NS)};

	nanosleep(&pause, NULL);
}

static bool naive_reserve(struct arena *arena, uint64_t bytes, uint64_t limit_bytes,
			  uint64_t *random)
{
	if (__atomic_load_n(&arena->naive_used_bytes, __ATOMIC_ACQUIRE) + bytes > limit_bytes)
		return false;
	latency(random);
	__atomic_add_fetch(&arena->naive_used_bytes, bytes, __ATOMIC_ACQ_REL);
	return true;
}

static void raise_most(struct arena *arena, uint64_t used_bytes)
{
	uint64_t most = __atomic_load_n(&arena->most_used_bytes, __ATOMIC_ACQUIRE);

	while (used_bytes > most &&
	       !__atomic_compare_exchange_n(&arena->most_used_bytes, &most, used_bytes, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
}

/* Each round one racer can win: exactly one allocation fits. */
static int racer(struct arena *arena, uint64_t processes, int index, int rounds,
		 uint64_t limit_bytes, bool exact, uint64_t *tally)
{
	uint64_t random = 88172645463325252ULL + (uint64_t)index * 7919;
	uint64_t bytes = limit_bytes;

	if (exact && vgpu_attach(NULL) != VGPU_OK)
		return 1;
	for (int round = 0; round < rounds; round++) {
		bool won;

		barrier(arena, processes);
		won = exact ? vgpu_reserve(0, bytes) == VGPU_OK
			    : naive_reserve(arena, bytes, limit_bytes, &random);
		if (won) {
			raise_most(arena, exact ? vgpu_used_bytes(0)
						: __atomic_load_n(&arena->naive_used_bytes,
								  __ATOMIC_ACQUIRE));
			__atomic_add_fetch(&arena->wins, 1, __ATOMIC_ACQ_REL);
			if (exact)
				latency(&random);
		}
		barrier(arena, processes);
		if (index == 0)
			tally[arena->wins > 2 ? 2 : arena->wins]++;
		barrier(arena, processes);
		if (index == 0)
			arena->wins = 0;
		if (won && exact)
			vgpu_refund(0, bytes);
		else if (won)
			__atomic_sub_fetch(&arena->naive_used_bytes, bytes, __ATOMIC_ACQ_REL);
	}
	return 0;
}

static void *shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		abort();
	return at;
}

int core_race(int argc, char **argv)
{
	struct arena *arena = shared(sizeof(*arena));
	uint64_t *tally = shared(3 * sizeof(*tally));
	uint64_t processes, limit_bytes;
	int rounds, failed = 0, status;

	if (argc != 4)
		return 2;
	processes = strtoull(argv[0], NULL, 10);
	rounds = atoi(argv[1]);
	limit_bytes = strtoull(argv[2], NULL, 10);
	for (uint64_t i = 0; i < processes; i++)
		if (fork() == 0)
			_exit(racer(arena, processes, (int)i, rounds, limit_bytes,
				    !strcmp(argv[3], "exact"), tally));
	while (wait(&status) > 0)
		failed |= status;
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %d\n", tally[0], tally[1], tally[2],
	       arena->most_used_bytes > limit_bytes);
	return failed != 0;
}

/* The control: a counter and an own word, each exact by itself. own[0] is the counter. */
static void naive_add(uint64_t *counter, uint64_t *own, uint64_t bytes)
{
	__atomic_add_fetch(counter, bytes, __ATOMIC_ACQ_REL);
	__atomic_add_fetch(own, bytes, __ATOMIC_ACQ_REL);
}

static void naive_loop(uint64_t *words, int index, uint64_t random)
{
	for (;;) {
		uint64_t bytes = next_random(&random) % 4096;

		naive_add(&words[0], &words[index + 1], bytes);
		naive_add(&words[0], &words[index + 1], 0 - bytes);
	}
}

static void exact_loop(uint64_t random)
{
	uint64_t held[64] = {0};

	for (;;) {
		uint64_t *entry = &held[next_random(&random) % 64];

		if (*entry) {
			vgpu_refund(0, *entry);
			*entry = 0;
		} else {
			uint64_t bytes = next_random(&random) % BASE_BYTES;

			*entry = vgpu_reserve(0, bytes) == VGPU_OK ? bytes : 0;
		}
	}
}

static void loop_in_child(bool exact, uint64_t *words, uint64_t *ready, int index, uint64_t random)
{
	if (exact && vgpu_attach(NULL) != VGPU_OK)
		_exit(1);
	__atomic_store_n(&ready[index], 1, __ATOMIC_RELEASE);
	if (exact)
		exact_loop(random);
	naive_loop(words, index, random);
}

/* Once all of them loop, kill one after the other, at random moments. */
static void run_and_kill(int width, bool exact, uint64_t *words, uint64_t *ready, uint64_t *random)
{
	pid_t pids[MAX_WIDTH];

	for (int index = 0; index < width; index++) {
		next_random(random);
		pids[index] = fork();
		if (pids[index] == 0)
			loop_in_child(exact, words, ready, index, *random);
	}
	for (int index = 0; index < width; index++)
		while (!__atomic_load_n(&ready[index], __ATOMIC_ACQUIRE) &&
		       waitpid(pids[index], NULL, WNOHANG) == 0)
			sched_yield();
	for (int index = 0; index < width; index++) {
		struct timespec pause = {0, (long)(next_random(random) % 200000)};

		nanosleep(&pause, NULL);
		kill(pids[index], SIGKILL);
		waitpid(pids[index], NULL, 0);
		ready[index] = 0;
		/* A reaper that trusts the control's own word refunds that amount. */
		if (!exact) {
			__atomic_sub_fetch(&words[0], words[index + 1], __ATOMIC_ACQ_REL);
			words[index + 1] = 0;
		}
	}
}

int core_loop(int argc, char **argv)
{
	uint64_t random = 2463534242;
	uint64_t *ready = shared(MAX_WIDTH * sizeof(*ready));
	uint64_t *words = shared((MAX_WIDTH + 1) * sizeof(*words));
	bool exact;
	int width;

	if (argc != 3)
		return 2;
	width = atoi(argv[1]);
	exact = !strcmp(argv[2], "exact");
	for (int left = atoi(argv[0]); left > 0; left -= width)
		run_and_kill(left < width ? left : width, exact, words, ready, &random);
	if (exact && vgpu_attach(NULL) != VGPU_OK)
		return 1;
	printf("%" PRId64 "\n", (int64_t)(exact ? vgpu_used_bytes(0) : words[0]));
	return 0;
}
