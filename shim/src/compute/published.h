/*
 * What a process writes into its container's compute record of the region: launches, the predicted
 * end of its work, and the GPU time that it spent.
 *
 * Other processes of the container write the same record, so each only adds to sums, and lowers
 * only a prediction of its own.
 */
#pragma once

#include <stdint.h>

#include "compute/submitted_work.h"
#include "vgpu/contract.h"

struct vgpu_published {
	uint64_t busy_until_ns;	      /* as this process last wrote it */
	uint64_t spent_ns;	      /* the part of work->spent_ns that was added */
	uint64_t unfinished_since_ns; /* as this process last wrote it */
};

/* launched_ns: when a thread has launched just now, or has tried to; 0: none has. */
void vgpu_publish(struct vgpu_published *published, struct vgpu_region_compute *record,
		  const struct vgpu_submitted_work *work, uint64_t launched_ns);
