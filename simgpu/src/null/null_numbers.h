/*
 * Numbers that threads take and give back without a lock: of the null driver's blocks and of its
 * large allocations. Inline, as an allocation takes one.
 */
#ifndef SIMGPU_NULL_NUMBERS_H
#define SIMGPU_NULL_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* Free numbers: those freed, last first, then those never used. */
struct null_numbers {
	uint64_t top;	/* tag << 32 | first free number + 1 */
	uint64_t fresh; /* from here on never used */
	uint64_t count;
	uint32_t *below; /* of a free number: the next one on the stack, + 1 */
};

/* Zeros; the kernel provides each page at its first use. */
static inline void *null_table(uint64_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

static inline bool null_numbers_begin(struct null_numbers *numbers, uint64_t count)
{
	*numbers =
	    (struct null_numbers){.count = count, .below = null_table(count * sizeof(uint32_t))};
	return numbers->below;
}

/* A free number; the count if there is none. */
static inline uint32_t null_number_take(struct null_numbers *numbers)
{
	uint64_t top = __atomic_load_n(&numbers->top, __ATOMIC_ACQUIRE);

	while ((uint32_t)top) {
		uint64_t tag = (top >> 32) + 1;
		uint32_t below =
		    __atomic_load_n(&numbers->below[(uint32_t)top - 1], __ATOMIC_RELAXED);

		if (__atomic_compare_exchange_n(&numbers->top, &top, tag << 32 | below, true,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return (uint32_t)top - 1;
	}
	if (__atomic_load_n(&numbers->fresh, __ATOMIC_RELAXED) >= numbers->count)
		return (uint32_t)numbers->count;
	top = __atomic_fetch_add(&numbers->fresh, 1, __ATOMIC_RELAXED);
	return top < numbers->count ? (uint32_t)top : (uint32_t)numbers->count;
}

static inline void null_number_give(struct null_numbers *numbers, uint32_t number)
{
	uint64_t top = __atomic_load_n(&numbers->top, __ATOMIC_ACQUIRE);
	uint64_t tag;

	do {
		tag = (top >> 32) + 1;
		__atomic_store_n(&numbers->below[number], (uint32_t)top, __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(&numbers->top, &top, tag << 32 | (number + 1), true,
					      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

#endif
