/*
 * What the driver needs of a program's code: the names of its kernels, and its size.
 *
 * Instructions are not read: a simulated launch takes time and computes nothing. Comments in PTX
 * text state what a kernel would do. Before an entry, `// simgpu: duration_ns=250000` is the
 * kernel's duration. `// simgpu: duration_argument=0` is the index of an 8-byte parameter that has
 * the duration. `// simgpu: local_bytes=4096` is the local memory of a thread. Anywhere, `//
 * simgpu: module_bytes=8388608` is the size of the whole code.
 *
 * Pure: bytes in, values out.
 */
#ifndef SIMGPU_CODE_H
#define SIMGPU_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE_UNSTATED UINT64_MAX /* no number is stated */

struct code_entry {
	char *name;
	uint64_t duration_ns;
	uint64_t duration_argument;
	uint64_t local_bytes; /* per thread; 0 if unstated */
};

struct code {
	unsigned int references;
	uint64_t bytes; /* size on the GPU */
	struct code_entry *entries;
	unsigned int entry_count;
};

/* Reads PTX text or machine code (cubin), whose headers are trusted. NULL: it is neither. */
struct code *code_read(const void *image);
void code_release(struct code *code);

/* Returns the index of the entry called `name`, or -1. */
int code_entry_find(const struct code *code, const char *name);

#endif
