/*
 * Limits that HAMi-core's environment variables ask for, where no grant says them.
 *
 * Pure: reads the variables it is given, opens nothing. CUDA_DEVICE_MEMORY_LIMIT and
 * CUDA_DEVICE_SM_LIMIT hold for every GPU, with _N behind them for the container's N-th; 0 is "no
 * limit", said aloud. Every other text is a value or a refusal: a limit that somebody asked for and
 * misspelt never becomes none. docs/environment.md is the table for users.
 */
#ifndef VGPU_ENVIRONMENT_H
#define VGPU_ENVIRONMENT_H

#include <stdint.h>

#include "vgpu/region.h"

struct vgpu_environment_limit {
	uint64_t bytes;	       /* VGPU_NO_LIMIT: none */
	uint32_t core_percent; /* 0: no limit */
};

struct vgpu_environment {
	struct vgpu_environment_limit limits[VGPU_MOST_GPUS];
	uint8_t listed[VGPU_MOST_GPUS][16]; /* of NVIDIA_VISIBLE_DEVICES */
	int listed_count;		    /* 0: it names no GPU by its UUID */
	uint64_t context_bytes;		    /* charged for each context and its code */
	char cache[200];
};

/*
 * Read `variables` ("NAME=value", as environ has them). VGPU_UNMANAGED: no memory limit is asked
 * for. Otherwise not VGPU_OK: the error names the variable and its value.
 */
enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error);

/* Which number the GPU has in the limits: `number` where no list says so; -1: not listed. */
int vgpu_environment_number(const struct vgpu_environment *environment, const uint8_t uuid[16],
			    int number);

#endif
