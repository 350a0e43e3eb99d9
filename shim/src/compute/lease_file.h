/*
 * The lease file of this process's grant, mapped for reading; see contract/lease_file.py.
 *
 * Without the file (limits from the environment, or an agent without an arbiter) each GPU has its
 * own part of each cycle, by its share.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease.h"
#include "loader/launches_checked.h"

/* The process's first launch: find the file. After it, vgpu_launches_are_checked is right. */
void vgpu_lease_file_find(void);

/* The newest lease of a GPU of the grant; `*lease` holds the last one read, and is replaced only
 * by a newer one. */
void vgpu_lease_refresh(int gpu, struct vgpu_lease *lease);

/* Sleep until then, or until the arbiter has written a lease newer than `lease`. May end early. */
void vgpu_lease_wait(int gpu, const struct vgpu_lease *lease, uint64_t now_ns, uint64_t until_ns);

/* Sleep for less than a second. */
void vgpu_pause(uint64_t pause_ns);
