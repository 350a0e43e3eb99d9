/*
 * The work of one process on one GPU: what was submitted, when it will be done, what may follow.
 *
 * Pure: time is an argument, no driver call, no lock; the caller guards it. The duration of a
 * launch is unknown in advance, so its cost is estimated: after about a millisecond of work the
 * caller records a marker (an event), and the instant at which the marker is done corrects the
 * costs of the launches before it. Costs only bound the work in flight and predict its end; shares
 * follow from the windows of the lease, whatever the costs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease.h"

enum {
	VGPU_WORK_MARKERS = 32,
	VGPU_WORK_COSTS = 256,
	VGPU_WORK_KINDS = 4, /* kinds of launches between two markers */
	VGPU_NO_MARKER = -1,
};

#define VGPU_STREAMS UINT64_MAX

struct vgpu_marker {
	uint64_t event;	     /* the caller's; 0: not recorded yet */
	uint64_t from_ns;    /* submission of its first launch */
	uint64_t stream;     /* of all its launches; VGPU_STREAMS: of several */
	uint32_t kind_count; /* 0: no launches */
	uint32_t launches[VGPU_WORK_KINDS];
	uint8_t kinds[VGPU_WORK_KINDS];
	bool probes; /* a launch is the first of its kind */
};

struct vgpu_submitted_work {
	uint64_t free_ns;	 /* when all submitted work is done, as predicted */
	uint64_t finished_ns;	 /* when the latest finished marker was done */
	uint64_t polled_ns;	 /* when the oldest marker was last found unfinished */
	uint64_t marked_ns;	 /* submission of the newest marker's last launch */
	uint64_t busy_ns;	 /* measured time of finished work */
	uint64_t own_end_ns;	 /* end of the last own window that was used */
	uint64_t overrun_ns;	 /* work beyond own windows, to be deducted from the next */
	struct vgpu_marker open; /* launches since the newest marker */
	uint32_t first, count;
	struct vgpu_marker markers[VGPU_WORK_MARKERS];
	uint32_t cost_ns[VGPU_WORK_COSTS]; /* by kind; 0: unknown */
};

/* A kind of launch: those of one function, executable graph or copy size cost about the same. */
uint8_t vgpu_work_kind(uint64_t handle, uint64_t size);

/* A launch that waits: what it is, and since when it waits. */
struct vgpu_waiting_launch {
	uint8_t kind;
	uint64_t since_ns;
};

/*
 * True: submit now, and call vgpu_work_submitted. False: try again at `*again_ns`, or when a marker
 * is done or the lease changes.
 */
bool vgpu_work_admits(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		      uint64_t now_ns, const struct vgpu_waiting_launch *waiting,
		      uint64_t *again_ns);

/* A launch is being submitted. The slot of the marker to be recorded after it, or
 * VGPU_NO_MARKER. */
int vgpu_work_submitted(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
			uint64_t stream);
/* Its event. Needs no lock: a marker without an event does not end. */
void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event);

/* A launch was submitted before, without a check. */
void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
		   uint64_t stream);

/* A launch was not admitted. If none follows in this turn: the slot of a marker to be recorded, so
 * that the end of the launches since the newest marker is observed; else VGPU_NO_MARKER. */
int vgpu_work_paused(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		     uint64_t now_ns);

/* The oldest unfinished marker; NULL: none. */
const struct vgpu_marker *vgpu_work_oldest(const struct vgpu_submitted_work *work);

/* 0: not recorded yet. */
static inline uint64_t vgpu_work_event(const struct vgpu_marker *marker)
{
	return __atomic_load_n(&marker->event, __ATOMIC_ACQUIRE);
}

/* It is unfinished; or it is done, `exactly` now or at some time since the last poll. */
void vgpu_work_polled(struct vgpu_submitted_work *work, uint64_t now_ns);
void vgpu_work_finished(struct vgpu_submitted_work *work, uint64_t now_ns, bool exactly);

/* Its event could not be recorded: it ends when it is due, and nothing is measured. False: later.
 */
bool vgpu_work_lost(struct vgpu_submitted_work *work, uint64_t now_ns);

/* All work of the stream (VGPU_STREAMS: of all) was done when a call of the program returned, just
 * now; call it after the markers that are done. What another thread has launched there meanwhile,
 * less than a marker's work, ends with it. */
void vgpu_work_synchronized(struct vgpu_submitted_work *work, uint64_t now_ns, uint64_t stream);

/* When all submitted work is done, as known at `now_ns`: overdue work shifts it. */
uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work, uint64_t now_ns);
