/*
 * Whether launches must be checked (compute/launch.h). If not, a launch costs only this test.
 *
 * compute/lease_file.c sets the pointer. It may point into a file that the arbiter writes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

extern const volatile uint32_t *vgpu_launches_checked_word;

/* False: no container of the grant's GPUs has a cap at present. */
static inline bool vgpu_launches_are_checked(void)
{
	return __builtin_expect(
	    *__atomic_load_n(&vgpu_launches_checked_word, __ATOMIC_RELAXED) != 0, 0);
}
