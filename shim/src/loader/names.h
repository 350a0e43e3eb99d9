/*
 * Finds a name in a constant list, in constant time. A name may occur several times.
 *
 * The map is the caller's static table, with open addressing. The first search fills it. Concurrent
 * threads fill it in the same order with the same values, so none waits for another.
 */
#pragma once

#include <stdint.h>

struct vgpu_names {
	const char *(*name_of)(int number);
	int count;	     /* positions are 0 to count - 1; several may have the same name */
	uint32_t slot_count; /* a power of two, more than twice count */
	uint16_t *slots;     /* a position in the list, plus 1; 0: free */
	int filled;
};

/* The slot at which to begin the search for a name. */
uint32_t vgpu_names_start(struct vgpu_names *names, const char *name);

/* Return the name's next position in the list. Search from *slot, and advance *slot. -1: none
 * left. */
int vgpu_names_next(const struct vgpu_names *names, const char *name, uint32_t *slot);
