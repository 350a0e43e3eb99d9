/* Arithmetic of times and durations in nanoseconds. */
#pragma once

#include <stdint.h>

static inline uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* By how much a exceeds b. */
static inline uint64_t beyond(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}
