/* Helpers of the test programs. */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 64 };

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* xorshift64, which gives the same sequence for the same seed on every machine. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Run this many threads to their end. Each gets its number. */
static inline void run_threads(int count, void *(*body)(void *number))
{
	pthread_t threads[MOST_THREADS];

	for (uintptr_t i = 0; i < (uintptr_t)count; i++)
		MUST(!pthread_create(&threads[i], NULL, body, (void *)i));
	for (int i = 0; i < count; i++)
		MUST(!pthread_join(threads[i], NULL));
}

struct test {
	const char *name;
	void (*run)(void);
};

/* Run the test that the program's first argument names. Returns 2 if there is none. */
static inline int run_test(const struct test *tests, int argc, char **argv)
{
	for (; argc > 1 && tests->name; tests++)
		if (!strcmp(argv[1], tests->name)) {
			tests->run();
			return 0;
		}
	return 2;
}
