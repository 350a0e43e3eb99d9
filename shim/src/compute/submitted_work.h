/*
 * The work that one process has submitted to one GPU: predicts its end, and decides what may
 * follow.
 *
 * Time is an argument. These functions call no driver and take no lock: the caller guards the
 * state. A launch's duration is unknown in advance, so its cost is estimated. After about a
 * millisecond of work the caller records a marker (an event). A marker's work is the launches since
 * the previous marker. When the work is done, its measured duration corrects the launches' costs.
 * Costs only limit the work in flight and predict its end. They do not change the shares, which the
 * windows determine.
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
	uint64_t event;	     /* the event that the caller recorded; 0: not yet */
	uint64_t from_ns;    /* when the marker's first launch was submitted */
	uint64_t stream;     /* the launches' stream; VGPU_STREAMS: several streams */
	uint32_t kind_count; /* 0: no launches */
	uint32_t launches[VGPU_WORK_KINDS];
	uint8_t kinds[VGPU_WORK_KINDS];
	bool probes; /* the marker has the first launch of a kind */
};

struct vgpu_submitted_work {
	uint64_t free_ns;	 /* predicted end of all submitted work */
	uint64_t finished_ns;	 /* end of the latest finished marker's work */
	uint64_t polled_ns;	 /* when a poll last found the oldest marker unfinished */
	uint64_t marked_ns;	 /* when the newest marker was made */
	uint64_t busy_ns;	 /* total measured duration of finished work */
	uint64_t own_end_ns;	 /* end of the last own window that was used */
	uint64_t overrun_ns;	 /* work beyond own windows, which delays later own windows */
	struct vgpu_marker open; /* launches since the newest marker */
	uint32_t first, count;
	struct vgpu_marker markers[VGPU_WORK_MARKERS];
	uint32_t cost_ns[VGPU_WORK_COSTS]; /* cost of a launch by kind; 0: unknown */
};

/* A number for the kind of a launch. Launches of one function or executable graph, or copies of one
 * size, are of one kind: they cost about the same. */
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

/* Enter a launch that is about to be submitted. Return the slot of the marker to record after the
 * launch, or VGPU_NO_MARKER. */
int vgpu_work_submitted(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
			uint64_t stream);
/* Set the marker's event. The caller needs no lock, because no marker without an event is
 * polled. */
void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event);

/* Enter a launch that was submitted earlier without a check. */
void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
		   uint64_t stream);

/* Call it when a launch was not admitted. If a marker is needed to observe the end of the launches
 * since the newest marker, return its slot, to be recorded after them. Otherwise return
 * VGPU_NO_MARKER. */
int vgpu_work_paused(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		     uint64_t now_ns);

/* The oldest unfinished marker, or NULL. */
const struct vgpu_marker *vgpu_work_oldest(const struct vgpu_submitted_work *work);

/* The marker's event. 0: not recorded yet. */
static inline uint64_t vgpu_work_event(const struct vgpu_marker *marker)
{
	return __atomic_load_n(&marker->event, __ATOMIC_ACQUIRE);
}

/* Note that a poll found the oldest marker's work unfinished, or finished. `exactly`: the work
 * ended just now, and not at some time since the last poll. */
void vgpu_work_polled(struct vgpu_submitted_work *work, uint64_t now_ns);
void vgpu_work_finished(struct vgpu_submitted_work *work, uint64_t now_ns, bool exactly);

/* End the oldest marker, whose event could not be recorded, at the predicted end of its work.
 * False: that time is still to come. */
bool vgpu_work_lost(struct vgpu_submitted_work *work, uint64_t now_ns);

/* End the open marker, because a call of the program has just waited for all work of the stream
 * (VGPU_STREAMS: of all streams). First report finished markers to vgpu_work_finished. Launches
 * that another thread has submitted to the stream since are assumed to be done too. */
void vgpu_work_synchronized(struct vgpu_submitted_work *work, uint64_t now_ns, uint64_t stream);

/* The predicted end of all submitted work. It is later where work is overdue at `now_ns`. */
uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work, uint64_t now_ns);
