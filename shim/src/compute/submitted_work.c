#include "compute/submitted_work.h"

#define MARK_NS	       UINT64_C(1000000) /* record a marker after this much predicted work */
#define POLL_NS	       UINT64_C(200000)	 /* shortest interval of polls while a launch waits */
#define POLL_MAX_NS    UINT64_C(1000000)
#define PROBE_POLL_NS  UINT64_C(20000) /* interval of polls for the end of a kind's first launch */
#define AHEAD_NS       UINT64_C(3000000)  /* most work in flight while other containers wait */
#define AHEAD_ALONE_NS UINT64_C(20000000) /* most work in flight while no other container waits */
#define OVERDUE_NS     UINT64_C(500000)	  /* overdue work is predicted to take this much longer */
#define UNKNOWN_NS     20000		  /* assumed cost of a launch of an unknown kind */
#define COST_MAX_NS    UINT64_C(4000000000)
#define REMARK_NS      UINT64_C(50000000) /* longest time between two markers */

/* Work that is overdue by this much may depend on later launches of this process. So a launch that
 * has waited for this time too is submitted whenever the window is open. */
#define STUCK_NS VGPU_LEASE_CYCLE_NS
/* Work that is overdue by more than this may never end, so launches no longer wait for it. */
#define ENDLESS_NS UINT64_C(1000000000)

/* Limit of the debt from work that ran beyond the container's own windows. */
#define OVERRUN_MAX_NS ENDLESS_NS

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t beyond(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

uint8_t vgpu_work_kind(uint64_t handle, uint64_t size)
{
	uint64_t magnitude = size ? 64 - (uint64_t)__builtin_clzll(size) : 0;

	return (uint8_t)(((handle >> 3) * 64 + magnitude) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

const struct vgpu_marker *vgpu_work_oldest(const struct vgpu_submitted_work *work)
{
	return work->count ? &work->markers[work->first] : NULL;
}

static uint32_t cost_of(const struct vgpu_submitted_work *work, uint8_t kind)
{
	return work->cost_ns[kind] ? work->cost_ns[kind] : UNKNOWN_NS;
}

static uint64_t predicted_ns(const struct vgpu_submitted_work *work,
			     const struct vgpu_marker *marker)
{
	uint64_t work_ns = 0;

	for (uint32_t i = 0; i < marker->kind_count; i++)
		work_ns += (uint64_t)marker->launches[i] * cost_of(work, marker->kinds[i]);
	return work_ns;
}

static uint64_t due_ns(const struct vgpu_submitted_work *work, const struct vgpu_marker *oldest)
{
	return later(work->finished_ns, oldest->from_ns) + predicted_ns(work, oldest);
}

/* Predict the end of all submitted work. A marker's work begins after the previous marker's, but
 * not before its submission. */
static void predict(struct vgpu_submitted_work *work)
{
	uint64_t at_ns = work->finished_ns;

	for (uint32_t i = 0; i < work->count; i++) {
		const struct vgpu_marker *marker =
		    &work->markers[(work->first + i) % VGPU_WORK_MARKERS];

		at_ns = later(at_ns, marker->from_ns) + predicted_ns(work, marker);
	}
	if (work->open.kind_count)
		at_ns = later(at_ns, work->open.from_ns) + predicted_ns(work, &work->open);
	work->free_ns = at_ns;
}

static uint64_t overdue_ns(const struct vgpu_submitted_work *work, uint64_t now_ns)
{
	const struct vgpu_marker *oldest = vgpu_work_oldest(work);

	return oldest ? beyond(now_ns, due_ns(work, oldest)) : 0;
}

uint64_t vgpu_work_free_ns(const struct vgpu_submitted_work *work, uint64_t now_ns)
{
	uint64_t late_ns = overdue_ns(work, now_ns);

	return work->free_ns + late_ns + (late_ns ? OVERDUE_NS : 0);
}

/* When to poll the marker again: well before its predicted end, which may be wrong. */
static uint64_t poll_ns(const struct vgpu_submitted_work *work, const struct vgpu_marker *oldest,
			uint64_t now_ns)
{
	uint64_t pause_ns = beyond(due_ns(work, oldest), now_ns) / 4;

	return now_ns + (pause_ns < POLL_NS	  ? POLL_NS
			 : pause_ns > POLL_MAX_NS ? POLL_MAX_NS
						  : pause_ns);
}

/* True if the own window is open: the container's own part of the cycle. If work ran beyond an own
 * window, the next ones open later by that time. */
static bool own_window_is_open(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
			       uint64_t now_ns, uint64_t *again_ns)
{
	uint64_t window_ns = turn->until_ns - turn->start_ns;

	if (work->own_end_ns && turn->until_ns > work->own_end_ns) {
		uint64_t windows = (turn->until_ns - work->own_end_ns) / VGPU_LEASE_CYCLE_NS;
		uint64_t free_ns = vgpu_work_free_ns(work, now_ns);

		work->overrun_ns =
		    beyond(work->overrun_ns, windows * window_ns) +
		    beyond(free_ns < turn->start_ns ? free_ns : turn->start_ns, work->own_end_ns);
		if (work->overrun_ns > OVERRUN_MAX_NS)
			work->overrun_ns = OVERRUN_MAX_NS;
	}
	work->own_end_ns = turn->until_ns;
	*again_ns = turn->start_ns + work->overrun_ns;
	if (work->overrun_ns >= window_ns)
		*again_ns = turn->start_ns + VGPU_LEASE_CYCLE_NS;
	return now_ns >= *again_ns;
}

static bool is_stuck(uint64_t late_ns, uint64_t waited_ns)
{
	return late_ns > ENDLESS_NS || (late_ns > STUCK_NS && waited_ns > STUCK_NS);
}

static bool is_first(const struct vgpu_submitted_work *work, uint8_t kind)
{
	return work->cost_ns[kind] == 0;
}

bool vgpu_work_admits(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		      uint64_t now_ns, const struct vgpu_waiting_launch *waiting,
		      uint64_t *again_ns)
{
	const struct vgpu_marker *oldest = vgpu_work_oldest(work);
	uint64_t free_ns = vgpu_work_free_ns(work, now_ns);
	uint64_t ahead_ns = turn->contended ? AHEAD_NS : AHEAD_ALONE_NS;
	bool opens = true;

	*again_ns = oldest ? poll_ns(work, oldest, now_ns) : turn->until_ns;
	if (!turn->open)
		return false;
	if (!turn->own || !turn->contended)
		work->own_end_ns = work->overrun_ns = 0; /* the arbiter accounts for leased time */
	else
		opens = own_window_is_open(work, turn, now_ns, again_ns);
	if (is_stuck(overdue_ns(work, now_ns), beyond(now_ns, waiting->since_ns)))
		return true;
	if (!opens)
		return false;
	if (oldest && (oldest->probes || is_first(work, waiting->kind))) {
		*again_ns = now_ns + PROBE_POLL_NS;
		return false;
	}
	if (free_ns >= turn->until_ns || work->count == VGPU_WORK_MARKERS)
		return false;
	if (free_ns <= now_ns + ahead_ns)
		return true;
	if (!oldest)
		*again_ns = now_ns + POLL_NS;
	return false;
}

/* Make the open marker the newest one. Return its slot. */
static int push(struct vgpu_submitted_work *work, uint64_t now_ns)
{
	uint32_t slot = (work->first + work->count) % VGPU_WORK_MARKERS;

	work->markers[slot] = work->open;
	work->count++;
	work->open = (struct vgpu_marker){0};
	work->marked_ns = now_ns;
	return (int)slot;
}

static void end_open(struct vgpu_submitted_work *work, uint64_t work_ns, uint64_t end_ns)
{
	work->busy_ns += work_ns;
	work->finished_ns = later(work->finished_ns, end_ns);
	work->open = (struct vgpu_marker){0};
}

static void enter(struct vgpu_marker *open, uint64_t now_ns, uint8_t kind, uint64_t stream)
{
	uint32_t i = 0;

	if (!open->kind_count) {
		open->from_ns = now_ns;
		open->stream = stream;
	}
	if (open->stream != stream)
		open->stream = VGPU_STREAMS;
	while (i < open->kind_count && open->kinds[i] != kind)
		i++;
	if (i == VGPU_WORK_KINDS)
		return; /* the marker has no place for the kind, but measures its time */
	if (i == open->kind_count)
		open->kinds[open->kind_count++] = kind;
	open->launches[i]++;
}

void vgpu_work_add(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind, uint64_t stream)
{
	/* The work of the open marker ended long ago, and the GPU was idle since: end the marker at
	 * that time. */
	if (!work->count && work->open.kind_count && now_ns > work->free_ns + MARK_NS)
		end_open(work, predicted_ns(work, &work->open), work->free_ns);
	enter(&work->open, now_ns, kind, stream);
	work->open.probes |= is_first(work, kind);
	work->free_ns = later(work->free_ns, now_ns) + cost_of(work, kind);
}

int vgpu_work_submitted(struct vgpu_submitted_work *work, uint64_t now_ns, uint8_t kind,
			uint64_t stream)
{
	const struct vgpu_marker *open = &work->open;

	vgpu_work_add(work, now_ns, kind, stream);
	if (work->count == VGPU_WORK_MARKERS)
		return VGPU_NO_MARKER;
	if (!open->probes && open->kind_count < VGPU_WORK_KINDS &&
	    now_ns < work->marked_ns + REMARK_NS && predicted_ns(work, open) < MARK_NS)
		return VGPU_NO_MARKER;
	return push(work, now_ns);
}

void vgpu_work_marked(struct vgpu_submitted_work *work, int slot, uint64_t event)
{
	__atomic_store_n(&work->markers[slot].event, event, __ATOMIC_RELEASE);
}

int vgpu_work_paused(struct vgpu_submitted_work *work, const struct vgpu_turn *turn,
		     uint64_t now_ns)
{
	bool last = !turn->open || vgpu_work_free_ns(work, now_ns) >= turn->until_ns;

	if (!work->open.kind_count || (work->count && !last) || work->count == VGPU_WORK_MARKERS)
		return VGPU_NO_MARKER;
	return push(work, now_ns);
}

void vgpu_work_polled(struct vgpu_submitted_work *work, uint64_t now_ns)
{
	work->polled_ns = now_ns;
}

/* The marker's launches took `measured_ns`. Correct the cost estimates of their kinds. */
static void update_costs(struct vgpu_submitted_work *work, const struct vgpu_marker *marker,
			 uint64_t measured_ns)
{
	double ratio = (double)measured_ns / (double)predicted_ns(work, marker);

	for (uint32_t i = 0; i < marker->kind_count; i++) {
		uint32_t *cost_ns = &work->cost_ns[marker->kinds[i]];
		double new_ns = ratio * cost_of(work, marker->kinds[i]);

		if (*cost_ns)
			new_ns = (new_ns + *cost_ns) / 2;
		/* atomic, because launch.c reads it without the lock */
		__atomic_store_n(cost_ns,
				 new_ns < 1		? 1
				 : new_ns > COST_MAX_NS ? (uint32_t)COST_MAX_NS
							: (uint32_t)new_ns,
				 __ATOMIC_RELAXED);
	}
}

void vgpu_work_synchronized(struct vgpu_submitted_work *work, uint64_t now_ns, uint64_t stream)
{
	const struct vgpu_marker *open = &work->open;
	uint64_t from_ns;

	if (work->count || !open->kind_count || (stream != VGPU_STREAMS && open->stream != stream))
		return;
	from_ns = later(work->finished_ns, open->from_ns);
	update_costs(work, open, now_ns - from_ns);
	end_open(work, now_ns - from_ns, now_ns);
	work->free_ns = now_ns;
}

static void end_oldest(struct vgpu_submitted_work *work, uint64_t from_ns, uint64_t end_ns)
{
	work->busy_ns += end_ns - from_ns;
	work->finished_ns = end_ns;
	work->first = (work->first + 1) % VGPU_WORK_MARKERS;
	work->count--;
	predict(work);
}

bool vgpu_work_lost(struct vgpu_submitted_work *work, uint64_t now_ns)
{
	const struct vgpu_marker *oldest = vgpu_work_oldest(work);
	uint64_t from_ns = later(work->finished_ns, oldest->from_ns);
	uint64_t end_ns = due_ns(work, oldest);

	if (end_ns > now_ns)
		return false;
	/* Assume a cost for each unknown kind. Otherwise each launch of such a kind would wait like
	 * a first one, because without events no cost is measured. */
	for (uint32_t i = 0; i < oldest->kind_count; i++)
		if (is_first(work, oldest->kinds[i]))
			__atomic_store_n(&work->cost_ns[oldest->kinds[i]], UNKNOWN_NS,
					 __ATOMIC_RELAXED);
	end_oldest(work, from_ns, end_ns);
	return true;
}

void vgpu_work_finished(struct vgpu_submitted_work *work, uint64_t now_ns, bool exactly)
{
	const struct vgpu_marker *marker = &work->markers[work->first];
	uint64_t from_ns = later(work->finished_ns, marker->from_ns);
	uint64_t least_ns = later(work->polled_ns, from_ns);
	uint64_t end_ns = from_ns + predicted_ns(work, marker);

	if (exactly || marker->probes || end_ns > now_ns)
		end_ns = now_ns;
	else if (end_ns < least_ns)
		end_ns = least_ns;
	update_costs(work, marker, end_ns - from_ns);
	end_oldest(work, from_ns, end_ns);
}
