/*
 * Limits that HAMi-core's environment variables set, if there is no grant.
 *
 * This file only parses the variables that it is given. CUDA_DEVICE_MEMORY_LIMIT and
 * CUDA_DEVICE_SM_LIMIT apply to every GPU. With _N appended they apply to the container's GPU N. 0
 * means "no limit". Any other text is a value or an error, so a misspelt limit is never ignored.
 * docs/memory.md has the table for users.
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
	int listed_count;			       /* 0: the variable has no list of UUIDs */
	uint64_t context_bytes;			       /* charged for each context and its code */
	char cache[200];
};

/* Read `variables` ("NAME=value", like environ). VGPU_UNMANAGED: they set no limit. Any other
 * result except VGPU_OK is an error, which names the variable and, if invalid, its value. */
enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error);

/* The GPU's number in the limits. Without a list it is `number`. -1: the GPU is not listed. */
int vgpu_environment_number(const struct vgpu_environment *environment, const uint8_t uuid[16],
			    int number);
