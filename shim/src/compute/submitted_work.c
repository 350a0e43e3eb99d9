#include "compute/submitted_work.h"

#include "compute/nanoseconds.h"

#define MARK_NS	      UINT64_C(1000000)	 /* a marker after this much predicted work of a stream */
#define REMARK_NS     UINT64_C(5000000)	 /* or after this time */
#define POLL_NS	      UINT64_C(200000)	 /* shortest interval of polls while a launch waits */
#define POLL_MAX_NS   UINT64_C(1000000)	 /* and while none waits */
#define PROBE_POLL_NS UINT64_C(20000)	 /* and while it waits for the first launch of a kind */
#define PROBE_MAX_NS  UINT64_C(5000000)	 /* longest such wait */
#define OVERDUE_NS    UINT64_C(500000)	 /* overdue work is predicted to take this much longer */
#define LANE_LOOK_NS  UINT64_C(20000000) /* longest pause until the lane is looked at again */
#define WHOLE_NS      UINT64_C(20000000) /* in flight while no other container waits */
#define SETTLED_NS    UINT64_C(5000000)	 /* others' work has ended so long after a window's begin */
#define LEAD_MAX_NS   UINT64_C(20000)	 /* longest CPU time between events that is not GPU time */
#define LONG_NS	      UINT64_C(1000000000)

/* Work that is overdue by this much may depend on later launches of this process. So a launch that
 * has waited for this time too is submitted whenever the window is open. */
#define STUCK_NS VGPU_LEASE_CYCLE_NS
/* Work that is overdue by more than this may never end, so launches no longer wait for it. */
#define ENDLESS_NS UINT64_C(1000000000)

/* Limit of the debt from work that ran beyond the container's own windows. */
#define OVERRUN_MAX_NS ENDLESS_NS

enum {
	UNMARKED_MAX = 256,
	STRETCH_ONE = 1024,
	STRETCH_USED = 1536,
	STRETCH_MAX = 16 * STRETCH_ONE,
};

/* How long work of this cost will take. Time slices of other containers lengthen it. */
static uint64_t stretched_ns(const struct vgpu_submitted_work *work, uint64_t cost_ns)
{
	return work->stretch < STRETCH_USED ? cost_ns : cost_ns * work->stretch / STRETCH_ONE;
}

static struct vgpu_work_stream *find(struct vgpu_submitted_work *work, uint64_t stream)
{
	for (int i = 0; i < VGPU_WORK_STREAMS; i++)
		if (work->streams[i].stream == stream)
			return &work->streams[i];
	return NULL;
}

static struct vgpu_work_stream *find_or_make(struct vgpu_submitted_work *work, uint64_t stream)
{
	struct vgpu_work_stream *found = find(work, stream), *first = work->streams;

	if (found)
		return found;
	for (int i = 1; i < VGPU_WORK_STREAMS; i++)
		if (work->streams[i].free_ns < first->free_ns)
			first = &work->streams[i];
	*first = (struct vgpu_work_stream){.stream = stream};
	return first;
}

uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work)
{
	uint64_t free_ns = 0;

	for (int i = 0; i < VGPU_WORK_STREAMS; i++)
		free_ns = later(free_ns, work->streams[i].free_ns);
	return free_ns;
}

/* True if the own window is open: the container's own part of the cycle. If work ran beyond an own
 * window, the next ones open later by that time. */
static bool own_window_is_open(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
			       uint64_t now_ns, uint64_t *again_ns)
{
	uint64_t window_ns = turn->until_ns - turn->start_ns;

	if (work->own_end_ns && turn->until_ns > work->own_end_ns) {
		uint64_t windows = (turn->until_ns - work->own_end_ns) / VGPU_LEASE_CYCLE_NS;
		uint64_t end_ns = earlier(vgpu_work_free_ns(work), turn->start_ns);

		work->overrun_ns = earlier(beyond(work->overrun_ns, windows * window_ns) +
					       beyond(end_ns, work->own_end_ns),
					   OVERRUN_MAX_NS);
	}
	work->own_end_ns = turn->until_ns;
	*again_ns = turn->start_ns +
		    (work->overrun_ns < window_ns ? work->overrun_ns : VGPU_LEASE_CYCLE_NS);
	return now_ns >= *again_ns;
}

/* True if the stream's oldest work is so late that the launch no longer waits for it. */
static bool is_stuck(const struct vgpu_submitted_work *work, uint64_t now_ns,
		     const struct vgpu_waiting_launch *waiting)
{
	uint64_t late_ns = 0;

	for (int i = 0; i < VGPU_WORK_MARKERS; i++)
		if (work->markers[i].from_ns && work->markers[i].stream == waiting->stream)
			late_ns = later(late_ns, beyond(now_ns, work->markers[i].due_ns));
	return late_ns > ENDLESS_NS ||
	       (late_ns > STUCK_NS && now_ns > waiting->since_ns + STUCK_NS);
}

/* True if the launch's kind is unknown, and on its stream runs another launch of an unknown kind:
 * the cost of both would be unknown. A persistent kernel must not block other kinds for long. */
static bool waits_for_probe(const struct vgpu_submitted_work *work, uint64_t now_ns,
			    const struct vgpu_waiting_launch *waiting)
{
	bool long_ago = now_ns > waiting->since_ns + PROBE_MAX_NS;

	for (int i = 0;
	     i < VGPU_WORK_MARKERS && work->probes && vgpu_cost_is_unknown(waiting->kind); i++)
		if (work->markers[i].probes && work->markers[i].stream == waiting->stream &&
		    (!long_ago || work->markers[i].kind == waiting->kind))
			return now_ns <= waiting->since_ns + STUCK_NS;
	return false;
}

/* True if the launch probably ends before other work that the last window left in flight. */
static bool ends_before_others(const struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
			       uint64_t now_ns, uint64_t free_ns, uint16_t kind)
{
	uint32_t cost_ns = vgpu_cost_known_ns(kind);

	return !turn->own && now_ns >= turn->start_ns && now_ns < work->due_ns && cost_ns &&
	       later(free_ns, now_ns) + cost_ns < vgpu_work_free_ns(work);
}

/* When the lane allows more than the container has spent. */
static uint64_t lane_again_ns(const struct vgpu_turn *turn, uint64_t now_ns, uint64_t spent_ns)
{
	uint64_t lacks_ns = earlier(beyond(spent_ns, turn->allowed_ns), LANE_LOOK_NS) + 1;

	return now_ns + earlier(lacks_ns * VGPU_LEASE_WHOLE_PPM / turn->lane_ppm + 1, LANE_LOOK_NS);
}

bool vgpu_work_admits(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		      uint64_t now_ns, uint64_t spent_ns, const struct vgpu_waiting_launch *waiting,
		      uint64_t *again_ns)
{
	const struct vgpu_work_stream *stream = find(work, waiting->stream);
	uint64_t free_ns = stream ? stream->free_ns : 0;
	bool fits = free_ns <= now_ns + turn->in_flight_ns;
	/* Each launch between pauses would make the GPU change contexts, which takes 0.2 ms. */
	uint64_t lane_ns = spent_ns + (work->lane_waits ? VGPU_LEASE_LANE_MIN_NS : 0);
	bool lane = lane_ns < turn->allowed_ns, opens = turn->open;

	work->lane_waits = !lane;
	if (spent_ns - work->spent_ns != work->others_ns)
		work->beside_ns = now_ns;
	work->others_ns = spent_ns - work->spent_ns;
	*again_ns = turn->until_ns;
	if (!turn->own || turn->in_flight_ns >= WHOLE_NS)
		work->own_end_ns = work->overrun_ns = 0; /* the arbiter accounts for leased time */
	else if (turn->open)
		opens = own_window_is_open(work, turn, now_ns, again_ns);
	if ((opens || lane) && waits_for_probe(work, now_ns, waiting)) {
		*again_ns = now_ns + PROBE_POLL_NS;
		return false;
	}
	if (fits && ((opens && free_ns < turn->until_ns) || lane ||
		     ends_before_others(work, turn, now_ns, free_ns, waiting->kind)))
		return true;
	if ((turn->open || lane) && is_stuck(work, now_ns, waiting))
		return true;
	if (!fits && (opens || lane))
		*again_ns = now_ns + earlier(later(free_ns - turn->in_flight_ns - now_ns, POLL_NS),
					     POLL_MAX_NS);
	else if (work->count) /* the arbiter must know when work ends */
		*again_ns =
		    earlier(*again_ns, now_ns + later(beyond(work->due_ns, now_ns) / 4, POLL_NS));
	if (!lane && turn->lane_ppm)
		*again_ns = earlier(*again_ns, lane_again_ns(turn, now_ns, lane_ns));
	return false;
}

/* Note the earliest end and the number of markers. */
static void count_markers(struct vgpu_submitted_work *work)
{
	work->due_ns = UINT64_MAX;
	work->count = work->probes = 0;
	for (int i = 0; i < VGPU_WORK_MARKERS; i++) {
		if (!work->markers[i].from_ns)
			continue;
		work->due_ns = earlier(work->due_ns, work->markers[i].due_ns);
		work->count++;
		work->probes += work->markers[i].probes;
	}
}

static void enter(struct vgpu_submitted_work *work, struct vgpu_work_stream *stream,
		  uint64_t from_ns, uint64_t cost_ns, uint32_t count)
{
	if (stream->free_ns <= from_ns)
		stream->busy_from_ns = from_ns;
	stream->free_ns = later(stream->free_ns, from_ns) + stretched_ns(work, cost_ns);
	stream->work_ns += cost_ns;
	stream->unmarked += count;
	work->spent_ns += cost_ns;
}

void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t stream, uint64_t from_ns,
		   uint64_t cost_ns, uint32_t count)
{
	enter(work, find_or_make(work, stream), from_ns, cost_ns, count);
}

int vgpu_work_submitted(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
			uint64_t now_ns, const struct vgpu_waiting_launch *launch)
{
	struct vgpu_work_stream *stream = find_or_make(work, launch->stream);
	uint32_t cost_ns = vgpu_cost_assumed_ns(launch->kind);
	bool idle = stream->free_ns <= now_ns;
	bool alone = turn->exclusive && now_ns >= work->beside_ns + SETTLED_NS;
	int slot = 0;

	if (alone)
		work->stretch = STRETCH_ONE;
	alone &= now_ns >= turn->start_ns + SETTLED_NS;
	enter(work, stream, now_ns, cost_ns, 1);
	if (vgpu_cost_known_ns(launch->kind) && stream->unmarked < UNMARKED_MAX &&
	    stream->work_ns < stream->mark_at_ns && now_ns < stream->marked_ns + REMARK_NS)
		return VGPU_NO_MARKER;
	while (slot < VGPU_WORK_MARKERS && work->markers[slot].from_ns)
		slot++;
	if (slot == VGPU_WORK_MARKERS)
		return VGPU_NO_MARKER;
	work->markers[slot] = (struct vgpu_marker){
	    .from_ns = now_ns,
	    .due_ns = stream->free_ns,
	    .polled_ns = now_ns,
	    .stream = launch->stream,
	    .work_ns = stream->work_ns,
	    .busy_from_ns = stream->busy_from_ns,
	    .alone_from_ns = alone ? later(turn->start_ns, 1) : 0,
	    .tag = vgpu_cost_tag(launch->kind),
	    .charged_ns = cost_ns,
	    .kind = launch->kind,
	    .idle = idle,
	    .probes = vgpu_cost_is_unknown(launch->kind),
	};
	/* The distance varies, so that no rhythm of the program hides a kind. */
	stream->mark_at_ns = stream->work_ns + (MARK_NS / 2 + (++work->marks * 0x9e3779b9u >> 12)) *
						   STRETCH_ONE / later(work->stretch, STRETCH_ONE);
	stream->unmarked = 0;
	stream->marked_ns = now_ns;
	count_markers(work);
	return slot;
}

void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event, uint64_t lead_ns)
{
	struct vgpu_marker *marker = &work->markers[slot];

	if (marker->idle)
		marker->lead_ns = (uint32_t)earlier(lead_ns, LEAD_MAX_NS);
	__atomic_store_n(&marker->event, event, __ATOMIC_RELEASE);
}

bool vgpu_work_poll_is_due(const struct vgpu_submitted_work *work, uint64_t now_ns, bool waits)
{
	uint64_t pause_ns = !waits ? POLL_MAX_NS : work->probes ? PROBE_POLL_NS : POLL_NS;

	/* The prediction may be too late, so look a few times before. */
	pause_ns = later(pause_ns, beyond(work->due_ns, work->polled_ns) / 4);
	return work->count && now_ns >= work->polled_ns + pause_ns;
}

int vgpu_work_pollable(struct vgpu_submitted_work *work, uint64_t now_ns)
{
	int found = VGPU_NO_MARKER;

	work->polled_ns = now_ns;
	for (int i = 0; i < VGPU_WORK_MARKERS; i++) {
		const struct vgpu_marker *marker = &work->markers[i];

		if (__atomic_load_n(&marker->event, __ATOMIC_ACQUIRE) &&
		    marker->polled_ns < now_ns &&
		    (found < 0 || marker->work_ns < work->markers[found].work_ns))
			found = i;
	}
	return found;
}

void vgpu_work_polled(struct vgpu_submitted_work *work, int slot, uint64_t now_ns)
{
	const struct vgpu_marker *marker = &work->markers[slot];
	struct vgpu_work_stream *stream = find(work, marker->stream);

	if (now_ns > marker->from_ns + LONG_NS)
		work->unfinished_since_ns = marker->from_ns;
	if (stream && now_ns > marker->due_ns)
		stream->free_ns =
		    later(stream->free_ns,
			  now_ns + OVERDUE_NS +
			      stretched_ns(work, beyond(stream->work_ns, marker->work_ns)));
	for (int i = 0; i < VGPU_WORK_MARKERS; i++)
		if (work->markers[i].stream == marker->stream)
			work->markers[i].polled_ns = now_ns;
}

/* Correct the stretch after a marker's launch that ended at `end_ns`. */
static void measure_stretch(struct vgpu_submitted_work *work, const struct vgpu_work_stream *stream,
			    const struct vgpu_marker *marker, uint64_t end_ns)
{
	uint64_t cost_ns = beyond(marker->work_ns, stream->ended_work_ns), stretch;

	if (!stream->ended_ns || !cost_ns || marker->busy_from_ns >= stream->ended_ns)
		return;
	stretch = beyond(end_ns, stream->ended_ns) * STRETCH_ONE / cost_ns;
	stretch = later(earlier(stretch, STRETCH_MAX), STRETCH_ONE);
	work->stretch = (uint32_t)((3 * later(work->stretch, STRETCH_ONE) + stretch) / 4);
}

/* A predicted end, corrected after `ended`, the stream's oldest marker, has ended: it comes after
 * all work up to `work_ns` of the stream. */
static uint64_t corrected_ns(const struct vgpu_submitted_work *work, uint64_t predicted_ns,
			     const struct vgpu_marker *ended, uint64_t now_ns, uint64_t work_ns)
{
	uint64_t left_ns = stretched_ns(work, beyond(work_ns, ended->work_ns));

	return earlier(later(predicted_ns, ended->polled_ns + left_ns), now_ns + left_ns);
}

static void end_marker(struct vgpu_submitted_work *work, struct vgpu_marker *marker,
		       uint64_t now_ns)
{
	struct vgpu_work_stream *stream = find(work, marker->stream);
	uint64_t end_ns = earlier(later(marker->due_ns, marker->polled_ns), now_ns);

	if (marker->polled_ns == marker->from_ns) /* it may have ended before it was due */
		end_ns -= (end_ns - marker->from_ns) / 8;
	if (stream) {
		measure_stretch(work, stream, marker, end_ns);
		stream->ended_ns = end_ns;
		stream->ended_work_ns = marker->work_ns;
		stream->free_ns =
		    corrected_ns(work, stream->free_ns, marker, now_ns, stream->work_ns);
	}
	for (int i = 0; i < VGPU_WORK_MARKERS; i++) {
		struct vgpu_marker *later_one = &work->markers[i];

		if (later_one->from_ns && later_one->stream == marker->stream)
			later_one->due_ns = corrected_ns(work, later_one->due_ns, marker, now_ns,
							 later_one->work_ns);
	}
	*marker = (struct vgpu_marker){0};
	count_markers(work);
}

bool vgpu_work_lost(struct vgpu_submitted_work *work, int slot, uint64_t now_ns)
{
	struct vgpu_marker *marker = &work->markers[slot];

	if (now_ns < marker->due_ns)
		return false;
	vgpu_cost_assume(marker->kind, marker->tag);
	end_marker(work, marker, now_ns);
	return true;
}

void vgpu_work_finished(struct vgpu_submitted_work *work, int slot, const struct vgpu_turn *turn,
			uint64_t now_ns, uint64_t took_ns)
{
	struct vgpu_marker *marker = &work->markers[slot];
	bool alone = turn->exclusive && later(turn->start_ns, 1) == marker->alone_from_ns &&
		     work->beside_ns < marker->from_ns;

	if (took_ns != VGPU_UNTIMED) {
		if (alone) /* beside others the first event perhaps waited too */
			took_ns = beyond(took_ns, marker->lead_ns);
		vgpu_cost_learn(&work->high, marker->kind, marker->tag, took_ns, alone);
		if (took_ns > LONG_NS)
			work->unfinished_since_ns = marker->from_ns;
		if (marker->probes)
			work->spent_ns += beyond(took_ns, marker->charged_ns);
	}
	end_marker(work, marker, now_ns);
}

void vgpu_work_ended(struct vgpu_submitted_work *work, uint64_t since_ns, uint64_t now_ns,
		     uint64_t stream, bool all)
{
	for (int i = 0; i < VGPU_WORK_STREAMS; i++) {
		struct vgpu_work_stream *ended = &work->streams[i];

		if ((all || ended->stream == stream) && ended->free_ns > since_ns)
			ended->free_ns = now_ns;
	}
}
