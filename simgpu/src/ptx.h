/*
 * What the driver reads in a PTX text: its version, its target, its entry points and their
 * parameters. Bodies are skipped: a simulated launch takes time and computes nothing. How long an
 * entry takes may stand in a comment before it: `// simgpu: duration_ns=250000`.
 *
 * Pure: text in, values out.
 */
#ifndef SIMGPU_PTX_H
#define SIMGPU_PTX_H

#include <stddef.h>
#include <stdint.h>

struct ptx_parameter {
	size_t offset, bytes;
};

struct ptx_entry {
	char *name;
	uint64_t duration_ns; /* SIM_DURATION_DEFAULT where the text does not say */
	struct ptx_parameter *parameters;
	unsigned int parameter_count;
};

struct ptx {
	unsigned int references; /* whoever keeps the text's meaning */
	unsigned int version;	 /* 10 * major + minor */
	unsigned int target;	 /* of sm_80: 80; 0 where there is none */
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
