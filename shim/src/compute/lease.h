/*
 * When a container may submit work to a GPU: in the window of its lease and in its lane, or in its
 * own part of each cycle.
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

/* Whether work may be submitted at a given time, and until when this does not change. */
struct vgpu_turn {
	bool open;
	bool exclusive;	       /* no other container submits work in the window */
	bool own;	       /* no lease applies; the window is the own part of the cycle */
	uint64_t start_ns;     /* begin of the window; 0: it was always open */
	uint64_t until_ns;     /* end of the window; if it is not open: when to look again */
	uint64_t in_flight_ns; /* most work that a stream may have in flight */
	uint64_t allowed_ns;   /* the lane: GPU time that may be spent by now, outside of windows */
	uint32_t lane_ppm;     /* growth of allowed_ns; 0: none */
};

/* Read the newest valid record of the pair. False: no record is valid, and `*lease` is
 * unchanged. */
bool vgpu_lease_read(const volatile struct vgpu_lease_record *pair,
		     struct vgpu_lease_record *lease);

struct vgpu_turn vgpu_lease_turn(const struct vgpu_lease_record *lease, uint64_t now_ns);
