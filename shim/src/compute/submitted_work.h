/*
 * The work that one process has submitted to one GPU: predicts its end, learns what launches cost,
 * and decides what may follow.
 *
 * Time is an argument. These functions call no driver and take no lock: the caller guards the
 * state. Work in flight is counted for each stream, because streams run at the same time.
 *
 * A launch's duration is unknown in advance, so each kind of launch has a cost, which is learned. A
 * marker is a pair of timed events around one launch. The time between them is GPU time without the
 * gaps before the launch. The last launch of each millisecond of predicted work of a stream has a
 * marker, and so have the first launches of a kind. Costs predict ends, limit the work in flight
 * and count the GPU time. The windows do not depend on them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compute/launch_costs.h"
#include "compute/lease.h"

enum {
	VGPU_WORK_MARKERS = 32,
	VGPU_WORK_STREAMS = 8,
	VGPU_NO_MARKER = -1,
};

/* As took_ns: the events had no time. */
#define VGPU_UNTIMED UINT64_MAX

struct vgpu_marker {
	uint64_t event;		/* the events that the caller recorded; 0: not yet */
	uint64_t from_ns;	/* when its launch was submitted; 0: the marker is not in use */
	uint64_t due_ns;	/* the launch's predicted end */
	uint64_t polled_ns;	/* when a poll last found it unfinished, or from_ns */
	uint64_t stream;	/* the launch's stream */
	uint64_t work_ns;	/* the stream's `work_ns` with the launch */
	uint64_t busy_from_ns;	/* the stream's */
	uint64_t alone_from_ns; /* begin of the exclusive window; 0: others may run */
	uint32_t tag;		/* of the launch's kind */
	uint32_t charged_ns;	/* what was added to `spent_ns` for the launch */
	uint32_t lead_ns;	/* CPU time between the events while the GPU was idle */
	uint16_t kind;
	bool idle;   /* the stream was idle before the launch */
	bool probes; /* the launch's cost was unknown */
};

/* A stream that does not fit takes the place of the one whose work ends first. */
struct vgpu_work_stream {
	uint64_t stream;
	uint64_t free_ns;	/* predicted end of its work */
	uint64_t busy_from_ns;	/* since when it has had work without a pause */
	uint64_t work_ns;	/* total cost of its launches */
	uint64_t mark_at_ns;	/* `work_ns` at which the next marker is due */
	uint64_t marked_ns;	/* when the newest marker was made */
	uint64_t ended_ns;	/* end of the latest finished marker's launch; 0: none */
	uint64_t ended_work_ns; /* `work_ns` of that marker */
	uint32_t unmarked;	/* launches since the newest marker */
};

struct vgpu_submitted_work {
	uint64_t spent_ns;	      /* total cost of all launches */
	uint64_t others_ns;	      /* GPU time that the container's other processes spent */
	uint64_t beside_ns;	      /* when that last grew */
	uint64_t due_ns;	      /* earliest predicted end of a marker's launch */
	uint64_t polled_ns;	      /* when markers were last polled */
	uint64_t unfinished_since_ns; /* start of the latest work that took over a second */
	uint64_t own_end_ns;	      /* end of the last own window that was used */
	uint64_t overrun_ns;	      /* work beyond own windows, which delays later own windows */
	uint32_t stretch;	      /* elapsed time of busy streams per cost, in 1,024ths */
	uint32_t count, probes;	      /* markers in use, and those of unknown kinds */
	uint32_t marks;		      /* markers made so far */
	struct vgpu_high_samples high;
	bool lane_waits; /* the limited lane is closed until it allows enough */
	struct vgpu_work_stream streams[VGPU_WORK_STREAMS];
	struct vgpu_marker markers[VGPU_WORK_MARKERS];
};

/* A launch to check: its kind and stream, and since when it waits. */
struct vgpu_waiting_launch {
	uint16_t kind;
	uint64_t stream, since_ns;
};

/* Whether the launch may be submitted. True: submit it now, and call vgpu_work_submitted. False:
 * try again at `*again_ns`, or when a marker is done or the lease changes. spent_ns: the
 * container's. */
bool vgpu_work_admits(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		      uint64_t now_ns, uint64_t spent_ns, const struct vgpu_waiting_launch *waiting,
		      uint64_t *again_ns);

/* Enter a launch that is about to be submitted. Return the slot of its marker, whose events to
 * record around the launch, or VGPU_NO_MARKER. */
int vgpu_work_submitted(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
			uint64_t now_ns, const struct vgpu_waiting_launch *launch);

/* Set the marker's events. The caller needs no lock, because no marker without events is polled.
 * lead_ns: the CPU time between the first event and the end of the launch's call. */
void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event, uint64_t lead_ns);

/* Enter launches on the stream that were submitted without a check since `from_ns`, with their
 * total cost. */
void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t stream, uint64_t from_ns,
		   uint64_t cost_ns, uint32_t count);

/* Whether to poll markers now. waits: a launch waits. */
bool vgpu_work_poll_is_due(const struct vgpu_submitted_work *work, uint64_t now_ns, bool waits);

/* The slot of the next marker to poll in the round of polls that began at `now_ns`, or
 * VGPU_NO_MARKER. Report the result to one of the three functions below. */
int vgpu_work_pollable(struct vgpu_submitted_work *work, uint64_t now_ns);

void vgpu_work_polled(struct vgpu_submitted_work *work, int slot, uint64_t now_ns);
void vgpu_work_finished(struct vgpu_submitted_work *work, int slot, const struct vgpu_turn *turn,
			uint64_t now_ns, uint64_t took_ns);
/* The marker's events could not be recorded, so it ends at its predicted time. False: that time is
 * still to come. */
bool vgpu_work_lost(struct vgpu_submitted_work *work, int slot, uint64_t now_ns);

/* The program has waited since `since_ns` for the work of the stream, or of all streams. If the
 * work was predicted to end later than that, it has ended now. */
void vgpu_work_ended(struct vgpu_submitted_work *work, uint64_t since_ns, uint64_t now_ns,
		     uint64_t stream, bool all);

/* The predicted end of all submitted work. */
uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work);
