/*
 * Maps a name to its numbers in a constant list, in constant time.
 *
 * Open addressing in the caller's static table, filled by its first user. The order of filling is
 * fixed, so concurrent threads write the same values, and none waits for another.
 */
#pragma once

#include <stdint.h>

struct vgpu_names {
	const char *(*name_of)(int number);
	int count;	     /* numbers are 0 to count - 1; several may share a name */
	uint32_t slot_count; /* a power of two, over twice count */
	uint16_t *slots;     /* number + 1; 0: free */
	int filled;
};

/* First entry of the table to check for a name. */
uint32_t vgpu_names_start(struct vgpu_names *names, const char *name);

/* The next number of that name from *slot on, which advances past it; -1: no more. */
int vgpu_names_next(const struct vgpu_names *names, const char *name, uint32_t *slot);
