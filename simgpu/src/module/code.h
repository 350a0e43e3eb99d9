/*
 * What the driver needs of a program's code: the names of its kernels, and its size.
 *
 * The code itself is not read: a simulated launch takes time and computes nothing. Comments in PTX
 * text state what the code would do. `// simgpu: duration_ns=250000` before an entry is the
 * duration of the kernel, `// simgpu: duration_argument=0` the number of its parameter of 8 bytes
 * that has the duration, `// simgpu: local_bytes=4096` the local memory of a thread. `// simgpu:
 * module_bytes=8388608` anywhere is the memory of the whole text's code.
 *
 * Pure: bytes in, values out.
 */
#ifndef SIMGPU_CODE_H
#define SIMGPU_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODE_UNSTATED UINT64_MAX /* a number that the code does not state */

struct code_entry {
	char *name;
	uint64_t duration_ns;
	uint64_t duration_argument;
	uint64_t local_bytes; /* per thread; 0 if unstated */
};

struct code {
	unsigned int references;
	uint64_t bytes; /* on the GPU */
	struct code_entry *entries;
	unsigned int entry_count;
};

/* Reads PTX text or machine code (cubin), whose own headers are trusted; NULL: it is neither. */
struct code *code_read(const void *image);
void code_release(struct code *code);

/* The number of the entry called `name`, or -1. */
int code_entry_find(const struct code *code, const char *name);

#endif
