/*
 * Whether launches must be checked: the one test on the path of a launch that is not limited.
 *
 * compute/lease_file.c decides; the word may be in a file that the arbiter writes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

extern const volatile uint32_t *vgpu_launches_checked_word;

/* False: no container of the grant's GPUs has a cap now. */
static inline bool vgpu_launches_are_checked(void)
{
	return __builtin_expect(
	    *__atomic_load_n(&vgpu_launches_checked_word, __ATOMIC_RELAXED) != 0, 0);
}
