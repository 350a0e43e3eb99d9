/*
 * What the driver reads in a PTX text: its version, its target, its entry points and their
 * parameters. Bodies are skipped: a simulated launch takes time and computes nothing. Comments tell
 * what a body would: before an entry how long it takes, `// simgpu: duration_ns=250000`, and how
 * much local memory a thread of it needs, `// simgpu: local_bytes=4096`; anywhere what the code of
 * the whole text takes, `// simgpu: module_bytes=8388608`.
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
	uint64_t duration_ns; /* SIM_DURATION_DEFAULT where the text does not say */
	uint64_t local_bytes; /* per thread */
	struct ptx_parameter *parameters;
	unsigned int parameter_count;
};

#define PTX_BYTES_DEFAULT UINT64_MAX

struct ptx {
	unsigned int references; /* whoever keeps the text's meaning */
	unsigned int version;	 /* 10 * major + minor */
	unsigned int target;	 /* of sm_80: 80; 0 where there is none */
	bool machine_code;	 /* read from a cubin (cubin.h) */
	uint64_t code_bytes;	 /* PTX_BYTES_DEFAULT where the text does not say */
	struct ptx_entry *entries;
	unsigned int entry_count;
};

enum ptx_result {
	PTX_OK,
	PTX_NOT_PTX,   /* does not begin as PTX does */
	PTX_MALFORMED, /* begins so, and cannot be read to the end */
	PTX_NO_MEMORY,
};

enum ptx_result ptx_parse(const char *text, struct ptx **out);
void ptx_release(struct ptx *ptx);

#endif
