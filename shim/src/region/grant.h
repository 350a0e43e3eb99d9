/*
 * The grant as it was last valid. The agent may change its limits at any time.
 *
 * The hot path compares the two sequence numbers in the read-only mapping with the known ones. It
 * verifies a copy only if one has changed. If the grant becomes invalid, or another grant, while
 * the process runs, the last valid content stays in force. Fork children share the mapping.
 */
#pragma once

#include <stdint.h>

#include "vgpu/region.h"

/* Map and verify the grant at `path`, once per process. */
enum vgpu_result vgpu_grant_load(const char *path, int *os_errno);

/* For limits from the environment, in place of a file: make space for `gpu_count` GPUs, each of
 * which is added at its first use. Call it once per process: vgpu_grant_load then does nothing. */
void vgpu_grant_assume(uint64_t id, int gpu_count);

/* One GPU of a grant. Fields change one by one, so read each with vgpu_grant_read. */
struct vgpu_grant_limits {
	uint64_t limit_bytes;
	uint64_t overhead_bytes;   /* measured: held by the driver, not charged */
	uint64_t chargeable_bytes; /* the limit less the overhead: what may be charged */
	uint64_t context_bytes;	   /* charged for each context */
	uint64_t code_bytes;	   /* charged with a process's first context */
	uint32_t core_percent;	   /* share of the GPU's time; 0 and 100: no cap */
	uint32_t flags;		   /* VGPU_GRANT_MANAGED_FREE */
};
void vgpu_grant_add(int gpu, const uint8_t uuid[16], const struct vgpu_grant_limits *limits);

/* Valid after vgpu_grant_load returned VGPU_OK, or after vgpu_grant_assume. */
int vgpu_grant_gpu_count(void);
uint64_t vgpu_grant_id(void);
int vgpu_grant_find(const uint8_t uuid[16]);

/* The newest valid limits of a GPU. They are all zero for a GPU that is not granted. */
const struct vgpu_grant_limits *vgpu_grant_limits(int gpu);
#define vgpu_grant_read(gpu, field)                                                                \
	__atomic_load_n(&vgpu_grant_limits(gpu)->field, __ATOMIC_RELAXED)
