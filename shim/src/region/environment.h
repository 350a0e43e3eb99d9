/*
 * Limits that HAMi-core's environment variables set, if there is no grant.
 *
 * Pure: reads the variables it is given, opens nothing. CUDA_DEVICE_MEMORY_LIMIT and
 * CUDA_DEVICE_SM_LIMIT apply to every GPU, with _N behind them to the container's N-th; 0 is an
 * explicit "no limit". Any other text is a value or a refusal: a misspelt limit never becomes none.
 * docs/memory.md is the table for users.
 */
#pragma once

#include <stdint.h>

#include "vgpu/region.h"

struct vgpu_environment_limit {
	uint64_t bytes;	       /* VGPU_NO_LIMIT: none */
	uint32_t core_percent; /* 0: no limit */
};

struct vgpu_environment {
	struct vgpu_environment_limit limits[VGPU_ENVIRONMENT_MAX_GPUS];
	uint8_t listed[VGPU_ENVIRONMENT_MAX_GPUS][16]; /* of NVIDIA_VISIBLE_DEVICES */
	int listed_count;			       /* 0: it names no GPU by its UUID */
	uint64_t context_bytes;			       /* charged for each context and its code */
	char cache[200];
};

/*
 * Read `variables` ("NAME=value", as in environ). VGPU_UNMANAGED: no memory limit is set. If the
 * result is neither this nor VGPU_OK, the error names the variable and, if invalid, its value.
 */
enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error);

/* The GPU's number in the limits: `number` if there is no list; -1: not listed. */
int vgpu_environment_number(const struct vgpu_environment *environment, const uint8_t uuid[16],
			    int number);
