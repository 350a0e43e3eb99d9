/*
 * When a container may submit work to a GPU: its lease, or its own part of each cycle.
 *
 * Pure: no clock, no driver call. The arbiter writes leases (contract/lease_file.py). Where it is
 * absent or silent, each container has the same part of every cycle by its share; the arbiter gave
 * the containers of a GPU parts that do not overlap.
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

/* Whether work may be submitted at an instant, and until when that holds. */
struct vgpu_turn {
	bool open;
	bool contended;	   /* others wait for the GPU: little work may be in flight */
	bool own;	   /* not leased: the container's own part of the cycle */
	uint64_t start_ns; /* of the own window */
	uint64_t until_ns; /* end of the window; if closed: when to look again */
};

/* The newest valid record of the pair. False: none is valid; `*lease` is unchanged. */
bool vgpu_lease_read(const volatile struct vgpu_lease_record *pair, struct vgpu_lease *lease);

struct vgpu_turn vgpu_lease_turn(const struct vgpu_lease *lease, uint64_t now_ns);
