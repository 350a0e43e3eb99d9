/* See lane.h. */
#include "compute/lane.h"

#define MARK_NS	       UINT64_C(1000000) /* work between two markers */
#define POLL_NS	       UINT64_C(200000)	 /* between looks at a marker that is waited for */
#define POLL_MOST_NS   UINT64_C(1000000)
#define PROBE_POLL_NS  UINT64_C(20000)	  /* the first of a kind is mostly short */
#define AHEAD_NS       UINT64_C(3000000)  /* in flight where others wait for the GPU */
#define AHEAD_ALONE_NS UINT64_C(20000000) /* and where none does */
#define OVERDUE_NS     UINT64_C(500000)	  /* overdue work takes that much longer, for all we know */
#define UNKNOWN_NS     20000		  /* cost of a launch that is the first of its kind */
#define COST_MOST_NS   UINT64_C(4000000000)
#define REMARK_NS      UINT64_C(50000000) /* a program of little work has a marker so often */

/* Work that is overdue by so much may wait for later launches of this very process: a launch that
 * has waited as long is submitted in any window. */
#define STUCK_NS   VGPU_LEASE_CYCLE_NS
#define ENDLESS_NS UINT64_C(1000000000) /* or has no end: nothing in flight is predictable */

#define OVERRUN_MOST_NS ENDLESS_NS /* of own windows; more is not deducted */

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t beyond(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

uint8_t vgpu_lane_kind(uint64_t handle, uint64_t size)
{
	uint64_t magnitude = size ? 64 - (uint64_t)__builtin_clzll(size) : 0;

	return (uint8_t)(((handle >> 3) * 64 + magnitude) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

const struct vgpu_marker *vgpu_lane_oldest(const struct vgpu_lane *lane)
{
	return lane->count ? &lane->markers[lane->first] : NULL;
}

static uint32_t cost_of(const struct vgpu_lane *lane, uint8_t kind)
{
	return lane->cost_ns[kind] ? lane->cost_ns[kind] : UNKNOWN_NS;
}

static uint64_t work_of(const struct vgpu_lane *lane, const struct vgpu_marker *marker)
{
	uint64_t work_ns = 0;

	for (uint32_t i = 0; i < marker->kind_count; i++)
		work_ns += (uint64_t)marker->launches[i] * cost_of(lane, marker->kinds[i]);
	return work_ns;
}

static uint64_t due_ns(const struct vgpu_lane *lane, const struct vgpu_marker *oldest)
{
	return later(lane->finished_ns, oldest->from_ns) + work_of(lane, oldest);
}

/* Each marker's work follows that of the one before it, and begins no earlier than submitted. */
static void predict(struct vgpu_lane *lane)
{
	uint64_t at_ns = lane->finished_ns;

	for (uint32_t i = 0; i < lane->count; i++) {
		const struct vgpu_marker *marker =
		    &lane->markers[(lane->first + i) % VGPU_LANE_MARKERS];

		at_ns = later(at_ns, marker->from_ns) + work_of(lane, marker);
	}
	if (lane->open.kind_count)
		at_ns = later(at_ns, lane->open.from_ns) + work_of(lane, &lane->open);
	lane->free_ns = at_ns;
}

static uint64_t overdue_ns(const struct vgpu_lane *lane, uint64_t now_ns)
{
	const struct vgpu_marker *oldest = vgpu_lane_oldest(lane);

	return oldest ? beyond(now_ns, due_ns(lane, oldest)) : 0;
}

uint64_t vgpu_lane_free_ns(const struct vgpu_lane *lane, uint64_t now_ns)
{
	uint64_t late_ns = overdue_ns(lane, now_ns);

	return lane->free_ns + late_ns + (late_ns ? OVERDUE_NS : 0);
}

/* When to look at a marker again: predictions may be wrong, so well before it is due. */
static uint64_t poll_ns(const struct vgpu_lane *lane, const struct vgpu_marker *oldest,
			uint64_t now_ns)
{
	uint64_t pause_ns = beyond(due_ns(lane, oldest), now_ns) / 4;

	return now_ns + (pause_ns < POLL_NS	   ? POLL_NS
			 : pause_ns > POLL_MOST_NS ? POLL_MOST_NS
						   : pause_ns);
}

/* Work that ran beyond an own window is deducted from the next ones. False: not yet. */
static bool own_window_is_open(struct vgpu_lane *lane, const struct vgpu_turn *turn,
			       uint64_t now_ns, uint64_t *again_ns)
{
	uint64_t window_ns = turn->until_ns - turn->start_ns;

	if (lane->own_end_ns && turn->until_ns > lane->own_end_ns) {
		uint64_t windows = (turn->until_ns - lane->own_end_ns) / VGPU_LEASE_CYCLE_NS;
		uint64_t free_ns = vgpu_lane_free_ns(lane, now_ns);

		lane->overrun_ns =
		    beyond(lane->overrun_ns, windows * window_ns) +
		    beyond(free_ns < turn->start_ns ? free_ns : turn->start_ns, lane->own_end_ns);
		if (lane->overrun_ns > OVERRUN_MOST_NS)
			lane->overrun_ns = OVERRUN_MOST_NS;
	}
	lane->own_end_ns = turn->until_ns;
	*again_ns = turn->start_ns + lane->overrun_ns;
	if (lane->overrun_ns >= window_ns)
		*again_ns = turn->start_ns + VGPU_LEASE_CYCLE_NS;
	return now_ns >= *again_ns;
}

static bool is_stuck(uint64_t late_ns, uint64_t waited_ns)
{
	return late_ns > ENDLESS_NS || (late_ns > STUCK_NS && waited_ns > STUCK_NS);
}

static bool is_first(const struct vgpu_lane *lane, uint8_t kind)
{
	return lane->cost_ns[kind] == 0;
}

bool vgpu_lane_admits(struct vgpu_lane *lane, const struct vgpu_turn *turn, uint64_t now_ns,
		      const struct vgpu_waiting_launch *waiting, uint64_t *again_ns)
{
	const struct vgpu_marker *oldest = vgpu_lane_oldest(lane);
	uint64_t free_ns = vgpu_lane_free_ns(lane, now_ns);
	uint64_t ahead_ns = turn->contended ? AHEAD_NS : AHEAD_ALONE_NS;
	bool opens = true;

	*again_ns = oldest ? poll_ns(lane, oldest, now_ns) : turn->until_ns;
	if (!turn->open)
		return false;
	if (!turn->own || !turn->contended)
		lane->own_end_ns = lane->overrun_ns = 0; /* the arbiter charges what it leases */
	else
		opens = own_window_is_open(lane, turn, now_ns, again_ns);
	if (is_stuck(overdue_ns(lane, now_ns), beyond(now_ns, waiting->since_ns)))
		return true;
	if (!opens)
		return false;
	if (oldest && (oldest->probes || is_first(lane, waiting->kind))) {
		*again_ns = now_ns + PROBE_POLL_NS;
		return false;
	}
	if (free_ns >= turn->until_ns || lane->count == VGPU_LANE_MARKERS)
		return false;
	if (free_ns <= now_ns + ahead_ns)
		return true;
	if (!oldest)
		*again_ns = now_ns + POLL_NS;
	return false;
}

/* The open marker becomes the newest one. */
static int push(struct vgpu_lane *lane, uint64_t now_ns)
{
	uint32_t slot = (lane->first + lane->count) % VGPU_LANE_MARKERS;

	lane->markers[slot] = lane->open;
	lane->count++;
	lane->open = (struct vgpu_marker){0};
	lane->marked_ns = now_ns;
	return (int)slot;
}

static void end_open(struct vgpu_lane *lane, uint64_t work_ns, uint64_t end_ns)
{
	lane->busy_ns += work_ns;
	lane->finished_ns = later(lane->finished_ns, end_ns);
	lane->open = (struct vgpu_marker){0};
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
	if (i == VGPU_LANE_KINDS)
		return; /* not learned from; its time is entered all the same */
	if (i == open->kind_count)
		open->kinds[open->kind_count++] = kind;
	open->launches[i]++;
}

void vgpu_lane_add(struct vgpu_lane *lane, uint64_t now_ns, uint8_t kind, uint64_t stream)
{
	/* The GPU was idle in between, which is no launch's cost. */
	if (!lane->count && lane->open.kind_count && now_ns > lane->free_ns + MARK_NS)
		end_open(lane, work_of(lane, &lane->open), lane->free_ns);
	enter(&lane->open, now_ns, kind, stream);
	lane->open.probes |= is_first(lane, kind);
	lane->free_ns = later(lane->free_ns, now_ns) + cost_of(lane, kind);
}

int vgpu_lane_submitted(struct vgpu_lane *lane, uint64_t now_ns, uint8_t kind, uint64_t stream)
{
	const struct vgpu_marker *open = &lane->open;

	vgpu_lane_add(lane, now_ns, kind, stream);
	if (lane->count == VGPU_LANE_MARKERS)
		return VGPU_NO_MARKER;
	if (!open->probes && open->kind_count < VGPU_LANE_KINDS &&
	    now_ns < lane->marked_ns + REMARK_NS && work_of(lane, open) < MARK_NS)
		return VGPU_NO_MARKER;
	return push(lane, now_ns);
}

void vgpu_lane_marked(struct vgpu_lane *lane, int slot, uint64_t event)
{
	__atomic_store_n(&lane->markers[slot].event, event, __ATOMIC_RELEASE);
}

int vgpu_lane_paused(struct vgpu_lane *lane, const struct vgpu_turn *turn, uint64_t now_ns)
{
	bool last = !turn->open || vgpu_lane_free_ns(lane, now_ns) >= turn->until_ns;

	if (!lane->open.kind_count || (lane->count && !last) || lane->count == VGPU_LANE_MARKERS)
		return VGPU_NO_MARKER;
	return push(lane, now_ns);
}

void vgpu_lane_looked(struct vgpu_lane *lane, uint64_t now_ns)
{
	lane->looked_ns = now_ns;
}

/* The launches of a marker cost `measured_ns` instead of what is known of their kinds. */
static void learn(struct vgpu_lane *lane, const struct vgpu_marker *marker, uint64_t measured_ns)
{
	double ratio = (double)measured_ns / (double)work_of(lane, marker);

	for (uint32_t i = 0; i < marker->kind_count; i++) {
		uint32_t *cost_ns = &lane->cost_ns[marker->kinds[i]];
		double new_ns = ratio * cost_of(lane, marker->kinds[i]);

		if (*cost_ns)
			new_ns = (new_ns + *cost_ns) / 2;
		/* launch.c reads it without the lock */
		__atomic_store_n(cost_ns,
				 new_ns < 1		 ? 1
				 : new_ns > COST_MOST_NS ? (uint32_t)COST_MOST_NS
							 : (uint32_t)new_ns,
				 __ATOMIC_RELAXED);
	}
}

void vgpu_lane_synchronized(struct vgpu_lane *lane, uint64_t now_ns, uint64_t stream)
{
	const struct vgpu_marker *open = &lane->open;
	uint64_t from_ns;

	if (lane->count || !open->kind_count || (stream != VGPU_STREAMS && open->stream != stream))
		return;
	from_ns = later(lane->finished_ns, open->from_ns);
	learn(lane, open, now_ns - from_ns);
	end_open(lane, now_ns - from_ns, now_ns);
	lane->free_ns = now_ns;
}

static void end_oldest(struct vgpu_lane *lane, uint64_t from_ns, uint64_t end_ns)
{
	lane->busy_ns += end_ns - from_ns;
	lane->finished_ns = end_ns;
	lane->first = (lane->first + 1) % VGPU_LANE_MARKERS;
	lane->count--;
	predict(lane);
}

bool vgpu_lane_lost(struct vgpu_lane *lane, uint64_t now_ns)
{
	const struct vgpu_marker *oldest = vgpu_lane_oldest(lane);
	uint64_t from_ns = later(lane->finished_ns, oldest->from_ns);
	uint64_t end_ns = due_ns(lane, oldest);

	if (end_ns > now_ns)
		return false;
	/* Where no event can be recorded, the first launch of a kind is the only one that waits. */
	for (uint32_t i = 0; i < oldest->kind_count; i++)
		if (is_first(lane, oldest->kinds[i]))
			__atomic_store_n(&lane->cost_ns[oldest->kinds[i]], UNKNOWN_NS,
					 __ATOMIC_RELAXED);
	end_oldest(lane, from_ns, end_ns);
	return true;
}

void vgpu_lane_finished(struct vgpu_lane *lane, uint64_t now_ns, bool exactly)
{
	const struct vgpu_marker *marker = &lane->markers[lane->first];
	uint64_t from_ns = later(lane->finished_ns, marker->from_ns);
	uint64_t least_ns = later(lane->looked_ns, from_ns);
	uint64_t end_ns = from_ns + work_of(lane, marker);

	if (exactly || marker->probes || end_ns > now_ns)
		end_ns = now_ns;
	else if (end_ns < least_ns)
		end_ns = least_ns;
	learn(lane, marker, end_ns - from_ns);
	end_oldest(lane, from_ns, end_ns);
}
