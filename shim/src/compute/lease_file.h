/*
 * The lease file of this process's grant, mapped for reading (see gpuslice/contract/lease_file.py).
 *
 * There is no file if the limits are from the environment, or the agent has no arbiter. The
 * container then uses a part of each cycle whose length is its share.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease.h"
#include "loader/launches_checked.h"

/* Map the file at the process's first launch. Until then vgpu_launches_are_checked is true. */
void vgpu_lease_file_find(void);

/* Replace `*lease`, the lease last read for the GPU, if there is a newer one. */
void vgpu_lease_refresh(int gpu, struct vgpu_lease_record *lease);

/* Sleep until `until_ns`, or until the arbiter writes a newer lease. May end early. */
void vgpu_lease_wait(int gpu, const struct vgpu_lease_record *lease, uint64_t now_ns,
		     uint64_t until_ns);
