/*
 * When a container may submit work to a GPU: by its lease, or in its own part of each cycle.
 *
 * Nothing here reads a clock or calls the driver. The arbiter writes leases
 * (contract/lease_file.py). If no arbiter runs, each container uses its own part of every cycle,
 * according to its share. The arbiter has assigned parts that do not overlap to the containers of a
 * GPU.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

struct vgpu_lease {
	uint64_t sequence; /* of the record; 0: none was ever written */
	uint64_t written_ns, start_ns, end_ns;
	uint32_t share_ppm, offset_ppm;
	bool contended;
};

/* Whether work may be submitted at an instant, and until when that stays so. */
struct vgpu_turn {
	bool open;
	bool contended;	   /* others wait, so little work may be in flight */
	bool own;	   /* no lease applies: the own part of the cycle */
	uint64_t start_ns; /* begin of the own window */
	uint64_t until_ns; /* end of the window; if not open: when to try again */
};

/* Read the newest valid record of the pair. False: none is valid, and `*lease` is unchanged. */
bool vgpu_lease_read(const volatile struct vgpu_lease_record *pair, struct vgpu_lease *lease);

struct vgpu_turn vgpu_lease_turn(const struct vgpu_lease *lease, uint64_t now_ns);
