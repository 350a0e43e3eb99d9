/*
 * The work of one process on one GPU: what was submitted, when it will be done, what may follow.
 *
 * Time is an argument. There is no driver call and no lock here: the caller guards the state. A
 * launch's duration is unknown in advance, so its cost is estimated. After about a millisecond of
 * work the caller records a marker (an event). When the marker's work is done, its duration
 * corrects the costs of the launches before it. Costs only limit the work in flight and predict its
 * end. The shares result from the lease's windows, whatever the costs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/lease.h"

enum {
	VGPU_WORK_MARKERS = 32,
	VGPU_WORK_COSTS = 256,
	VGPU_WORK_KINDS = 4, /* kinds of launches per marker */
	VGPU_NO_MARKER = -1,
};

#define VGPU_STREAMS UINT64_MAX

struct vgpu_marker {
	uint64_t event;	     /* recorded by the caller; 0: not yet */
	uint64_t from_ns;    /* when its first launch was submitted */
	uint64_t stream;     /* of its launches; VGPU_STREAMS: several */
	uint32_t kind_count; /* 0: no launches */
	uint32_t launches[VGPU_WORK_KINDS];
	uint8_t kinds[VGPU_WORK_KINDS];
	bool probes; /* it has the first launch of a kind */
};

struct vgpu_submitted_work {
	uint64_t free_ns;	 /* predicted end of all submitted work */
	uint64_t finished_ns;	 /* end of the latest finished marker's work */
	uint64_t polled_ns;	 /* when the oldest marker was last unfinished */
	uint64_t marked_ns;	 /* when the newest marker was submitted */
	uint64_t busy_ns;	 /* measured duration of finished work */
	uint64_t own_end_ns;	 /* end of the last own window it used */
	uint64_t overrun_ns;	 /* work beyond own windows, due from later ones */
	struct vgpu_marker open; /* launches since the newest marker */
	uint32_t first, count;
	struct vgpu_marker markers[VGPU_WORK_MARKERS];
	uint32_t cost_ns[VGPU_WORK_COSTS]; /* by kind; 0: unknown */
};

/* The number of a kind of launch. Launches of one function, executable graph or copy size cost
 * about the same, and are of one kind. */
uint8_t vgpu_work_kind(uint64_t handle, uint64_t size);

/* A launch that waits: its kind, and since when it waits. */
struct vgpu_waiting_launch {
	uint8_t kind;
	uint64_t since_ns;
};

/* Whether the launch may be submitted. True: submit it now, and call vgpu_work_submitted. False:
 * try again at `*again_ns`, or when a marker is done or the lease changes. */
bool vgpu_work_admits(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		      uint64_t now_ns, const struct vgpu_waiting_launch *waiting,
		      uint64_t *again_ns);

/* Enter a launch that is about to be submitted. Return the slot of the marker to record after it,
 * or VGPU_NO_MARKER. */
int vgpu_work_submitted(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
			uint64_t stream);
/* Set the marker's event. It needs no lock, because a marker without an event is not polled. */
void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event);

/* Enter a launch that was submitted earlier without a check. */
void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
		   uint64_t stream);

/* Called when a launch was not admitted. If none can be admitted in this turn, the end of the
 * launches since the newest marker must be observed: return the slot of a marker to record after
 * them. Otherwise return VGPU_NO_MARKER. */
int vgpu_work_paused(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		     uint64_t now_ns);

/* The oldest unfinished marker, or NULL. */
const struct vgpu_marker *vgpu_work_oldest(const struct vgpu_submitted_work *work);

/* The marker's event. 0: not recorded yet. */
static inline uint64_t vgpu_work_event(const struct vgpu_marker *marker)
{
	return __atomic_load_n(&marker->event, __ATOMIC_ACQUIRE);
}

/* Note that the oldest marker's work was polled and is unfinished. Or note that it is done:
 * `exactly` now, or else at some time since the last poll. */
void vgpu_work_polled(struct vgpu_submitted_work *work, uint64_t now_ns);
void vgpu_work_finished(struct vgpu_submitted_work *work, uint64_t now_ns, bool exactly);

/* The oldest marker's event could not be recorded: it ends when it is due, without a measurement.
 * False: it is not due yet. */
bool vgpu_work_lost(struct vgpu_submitted_work *work, uint64_t now_ns);

/* A call of the program has just returned, and all work of the stream (VGPU_STREAMS: of all
 * streams) is done. Call it after vgpu_work_finished. Launches that another thread submitted to the
 * stream meanwhile, less than a marker's work, are assumed to be done too. */
void vgpu_work_synchronized(struct vgpu_submitted_work *work, uint64_t now_ns, uint64_t stream);

/* The predicted end of all submitted work. It is later where work is overdue at `now_ns`. */
uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work, uint64_t now_ns);
