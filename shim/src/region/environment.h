/*
 * The limits in HAMi-core's environment variables. They apply if there is no grant.
 *
 * CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT apply to every GPU. With _N appended they apply
 * to the container's GPU N. 0 means "no limit". Text that is no valid value is an error, so that a
 * misspelt limit is never ignored. docs/memory.md has the table for users.
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
	int listed_count;	/* 0: NVIDIA_VISIBLE_DEVICES is no list of UUIDs */
	uint64_t context_bytes; /* the charge of a context, code included */
	char cache[200];
};

/* Read `variables` ("NAME=value", like environ). VGPU_UNMANAGED: the variables set no limit. After
 * any other result except VGPU_OK, `error` names the variable and the invalid value. */
enum vgpu_result vgpu_environment_parse(char *const *variables, struct vgpu_environment *out,
					struct vgpu_error *error);

/* The GPU's index in `limits`. It is `number` if the environment has no list of UUIDs. -1: the GPU
 * is not listed. */
int vgpu_environment_number(const struct vgpu_environment *environment, const uint8_t uuid[16],
			    int number);
