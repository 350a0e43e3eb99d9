/*
 * Maps a name to its numbers in a constant list, in constant time.
 *
 * The map is a static table of the caller with open addressing. Its first user fills it. The order
 * of filling is fixed: concurrent threads write the same values, so none waits for another.
 */
#pragma once

#include <stdint.h>

struct vgpu_names {
	const char *(*name_of)(int number);
	int count;	     /* the numbers are 0 to count - 1 */
	uint32_t slot_count; /* a power of two, more than twice count */
	uint16_t *slots;     /* a number + 1; 0: free */
	int filled;
};

/* The slot at which to begin the search for a name. */
uint32_t vgpu_names_start(struct vgpu_names *names, const char *name);

/* Return the name's next number, searching from *slot, and advance *slot past it. -1: none left. */
int vgpu_names_next(const struct vgpu_names *names, const char *name, uint32_t *slot);
