/*
 * When a container may submit work to a GPU: in the window of its lease, or in its own part of each
 * cycle.
 *
 * These functions read no clock and do not call the driver. The arbiter writes leases
 * (gpuslice/contract/lease_file.py). If the arbiter stops, each container uses its own part of
 * every cycle. The arbiter has given the containers of a GPU parts that do not overlap, by their
 * shares.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

struct vgpu_lease {
	uint64_t sequence; /* the record's sequence number; 0: none was ever written */
	uint64_t written_ns, start_ns, end_ns;
	uint32_t share_ppm, offset_ppm;
	bool contended;
};

/* Whether work may be submitted at a given time, and until when this does not change. */
struct vgpu_turn {
	bool open;
	bool contended;	   /* other containers wait, so little work may be in flight */
	bool own;	   /* no lease applies; the window is the own part of the cycle */
	uint64_t start_ns; /* begin of the own part; 0 under a lease */
	uint64_t until_ns; /* end of the window; if it is not open: when to look again */
};

/* Read the newest valid record of the pair. False: no record is valid, and `*lease` is
 * unchanged. */
bool vgpu_lease_read(const volatile struct vgpu_lease_record *pair, struct vgpu_lease *lease);

struct vgpu_turn vgpu_lease_turn(const struct vgpu_lease *lease, uint64_t now_ns);
