/*
 * Reads a PTX text as the driver does: its version, its target, its entry points and their
 * parameters, and its variables. Bodies are skipped: a simulated launch takes time and computes
 * nothing. Comments state what a body would: before an entry its duration, `// simgpu:
 * duration_ns=250000`, or the parameter of 8 bytes that has it, counted from 0, `// simgpu:
 * duration_argument=0`; the local memory of a thread of it, `// simgpu: local_bytes=4096`;
 * anywhere the memory of the whole text's code, `// simgpu: module_bytes=8388608`.
 *
 * Pure: text in, values out.
 */
#ifndef SIMGPU_PTX_H
#define SIMGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_parameter {
	size_t offset, bytes;
};

struct ptx_entry {
	char *name;
	uint64_t duration_ns;	    /* PTX_DURATION_DEFAULT if the text does not state it */
	uint64_t duration_argument; /* PTX_NO_ARGUMENT: none has it */
	uint64_t local_bytes;	    /* per thread */
	struct ptx_parameter *parameters;
	unsigned int parameter_count;
};

/* A variable of a module, in global or constant memory. */
struct ptx_variable {
	char *name;
	uint64_t offset, bytes; /* in what all variables together take */
};

#define PTX_BYTES_DEFAULT    UINT64_MAX
#define PTX_DURATION_DEFAULT UINT64_MAX
#define PTX_NO_ARGUMENT	     UINT64_MAX

struct ptx {
	unsigned int references; /* users of the parsed text */
	unsigned int version;	 /* 10 * major + minor */
	unsigned int target;	 /* of sm_80: 80; 0 if there is none */
	bool machine_code;	 /* read from a cubin (cubin.h) */
	uint64_t code_bytes;	 /* PTX_BYTES_DEFAULT if the text does not state it */
	struct ptx_entry *entries;
	unsigned int entry_count;
	const struct ptx_entry **by_name; /* the entries, sorted */
	struct ptx_variable *variables;
	unsigned int variable_count;
	uint64_t variables_bytes;
	char *initial; /* the first `initial_bytes` of the variables */
	uint64_t initial_bytes;
};

enum ptx_result {
	PTX_OK,
	PTX_NOT_PTX,   /* does not begin as PTX does */
	PTX_MALFORMED, /* begins so, but is malformed */
	PTX_NO_MEMORY,
};

enum ptx_result ptx_parse(const char *text, struct ptx **out);
void ptx_release(struct ptx *ptx);

/* The index of the entry called `name`, or -1. */
int ptx_entry_find(const struct ptx *ptx, const char *name);
const struct ptx_variable *ptx_variable_find(const struct ptx *ptx, const char *name);

/* For readers of other formats. The first returns `rows` with space for one more than `count`. */
void *ptx_grow(void *rows, unsigned int count, size_t bytes);
enum ptx_result ptx_variable_add(struct ptx *ptx, const char *name, size_t name_bytes,
				 struct ptx_variable row);
/* Sorts the entries for the search. */
enum ptx_result ptx_finish(struct ptx *ptx);

#endif
