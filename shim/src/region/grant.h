/*
 * The grant as it was last valid. The agent may change its limits at any time.
 *
 * The file has two copies of the grant, each with a sequence number. Each use of the limits
 * compares these numbers with those last seen, and verifies a copy only if a number has changed. If
 * the grant becomes invalid while the process runs, or is replaced by another grant, the last valid
 * content stays in force. Fork children share the mapping.
 */
#pragma once

#include <stdint.h>

#include "vgpu/region.h"

/* Map and verify the grant at `path`, once per process. */
enum vgpu_result vgpu_grant_load(const char *path, int *os_errno);

/* Replaces vgpu_grant_load if the limits are from the environment: make space for `gpu_count` GPUs.
 * vgpu_grant_add adds each GPU at its first use. */
void vgpu_grant_assume(uint64_t id, int gpu_count);

/* One GPU's limits. The agent may change them at any time, so read each field with
 * vgpu_grant_read. */
struct vgpu_grant_limits {
	uint64_t limit_bytes;
	uint64_t overhead_bytes;   /* measured; the driver holds it beyond the charge */
	uint64_t chargeable_bytes; /* the limit less the overhead: what may be charged */
	uint64_t context_bytes;	   /* charged for each context */
	uint64_t code_bytes;	   /* charged in addition for a process's first context */
	uint32_t core_percent;	   /* share of the GPU's time; 0 and 100: no cap */
	uint32_t flags;		   /* VGPU_GRANT_MANAGED_FREE */
};
void vgpu_grant_add(int gpu, const uint8_t uuid[16], const struct vgpu_grant_limits *limits);

/* Call these after vgpu_grant_load returned VGPU_OK, or after vgpu_grant_assume. */
int vgpu_grant_gpu_count(void);
uint64_t vgpu_grant_id(void);
int vgpu_grant_find(const uint8_t uuid[16]);

/* The newest valid limits of a GPU. All are 0 if the GPU is not granted. */
const struct vgpu_grant_limits *vgpu_grant_limits(int gpu);
#define vgpu_grant_read(gpu, field)                                                                \
	__atomic_load_n(&vgpu_grant_limits(gpu)->field, __ATOMIC_RELAXED)
