#include "compute/launch.h"

#include "compute/current.h"
#include "compute/markers.h"
#include "compute/published.h"
#include "compute/submitted_work.h"
#include "os/lock.h"
#include "region/mapping.h"
#include "region/process.h"
#include "vgpu/region.h"

#define SPARE_NS     200000u /* most work that a thread may submit to a stream without a check */
#define SPARE_MIN_NS 3125u   /* a shorter launch counts as this long, which limits their number */

enum { SPARE_STREAMS = 4 };

/* The state of one GPU in this process. */
static struct gpu {
	struct vgpu_lock lock;
	struct vgpu_lock poll_lock; /* held by the thread that polls markers; taken before `lock` */
	struct vgpu_submitted_work work;
	struct vgpu_lease_record lease;
	struct vgpu_published published;
	struct vgpu_region_compute unmapped; /* record_of */
} gpus[VGPU_ENVIRONMENT_MAX_GPUS];

/* The unchecked launches of this thread since its last check. They cost only a few nanoseconds
 * each. The next check adds them to the submitted work. */
static __thread struct spare {
	int gpu_after;	  /* the GPU's index in the grant + 1; 0: the next launch must be checked */
	uint64_t from_ns; /* the last check */
	uint32_t count, made;
	struct spare_stream {
		CUstream stream;
		uint32_t left_ns; /* what it may submit until its own next check */
		uint32_t count;
		uint64_t cost_ns;
	} streams[SPARE_STREAMS];
} spare;

static struct spare_stream *find(CUstream stream)
{
	for (int i = 0; i < SPARE_STREAMS; i++)
		if (spare.streams[i].stream == stream)
			return &spare.streams[i];
	return NULL;
}

static bool spare_admits(int gpu, CUstream stream, uint16_t kind)
{
	uint32_t cost_ns = vgpu_cost_known_ns(kind);
	uint32_t counts_ns = cost_ns > SPARE_MIN_NS ? cost_ns : SPARE_MIN_NS;
	struct spare_stream *on = find(stream);

	if (spare.gpu_after != gpu + 1 || !on || !cost_ns || counts_ns > on->left_ns)
		return false;
	on->left_ns -= counts_ns;
	on->cost_ns += cost_ns;
	on->count++;
	spare.count++;
	return true;
}

/* Let the thread launch without checks on this stream, and on others that it has checked. */
static void allow_spare(int gpu, CUstream stream, uint64_t now_ns)
{
	struct spare_stream *on;

	if (spare.gpu_after != gpu + 1)
		spare = (struct spare){.gpu_after = gpu + 1};
	on = find(stream);
	if (!on)
		on = &spare.streams[spare.made++ % SPARE_STREAMS];
	*on = (struct spare_stream){stream, SPARE_NS, 0, 0};
	spare.from_ns = now_ns;
}

/* Add this thread's unchecked launches to the GPU's submitted work. The caller holds the GPU's
 * lock. */
static void enter_spare(struct vgpu_submitted_work *work, int gpu)
{
	for (int i = 0; i < SPARE_STREAMS && spare.count; i++) {
		struct spare_stream *on = &spare.streams[i];

		if (on->count && spare.gpu_after == gpu + 1)
			vgpu_work_add(work, (uintptr_t)on->stream, spare.from_ns, on->cost_ns,
				      on->count);
		on->cost_ns = on->count = 0;
	}
	spare.count = 0;
}

/* Add the thread's unchecked launches to the submitted work of another GPU, if they were on that
 * one. */
static void enter_other_spare(int gpu)
{
	int other = spare.gpu_after - 1;

	if (other < 0 || other == gpu || !vgpu_lock(&gpus[other].lock))
		return;
	enter_spare(&gpus[other].work, other);
	spare.gpu_after = 0;
	vgpu_unlock(&gpus[other].lock);
}

/* The GPU's record in the region. A process without a region has one of its own. */
static struct vgpu_region_compute *record_of(int gpu)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) ? vgpu_view_compute(&process->view, gpu)
						  : &gpus[gpu].unmapped;
}

/* Take the next marker to poll, and return its slot. */
static int take_marker(struct gpu *of, uint64_t now_ns, vgpu_event *event)
{
	int slot;

	if (!vgpu_lock(&of->lock))
		return VGPU_NO_MARKER;
	slot = vgpu_work_pollable(&of->work, now_ns);
	if (slot >= 0)
		*event = of->work.markers[slot].event;
	vgpu_unlock(&of->lock);
	return slot;
}

/* Note the result of a poll. False: the marker's events are still needed. */
static bool note_poll(struct gpu *of, int slot, vgpu_event event, bool reached, uint64_t took_ns,
		      uint64_t now_ns)
{
	struct vgpu_turn turn;
	bool ended = reached;

	if (!vgpu_lock(&of->lock))
		return false;
	if (event == VGPU_EVENT_LOST)
		ended = vgpu_work_lost(&of->work, slot, now_ns);
	else if (reached) {
		vgpu_lease_refresh((int)(of - gpus), &of->lease);
		turn = vgpu_lease_turn(&of->lease, now_ns);
		vgpu_work_finished(&of->work, slot, &turn, now_ns, took_ns);
	}
	if (!ended)
		vgpu_work_polled(&of->work, slot, now_ns);
	vgpu_unlock(&of->lock);
	return ended;
}

/* End the finished markers. The caller does not hold the GPU's lock, because the function calls the
 * driver. Only one thread polls: otherwise another thread could end the marker during the query,
 * and reuse the marker's events for a later launch. */
static void poll_markers(struct gpu *of, uint64_t now_ns)
{
	vgpu_event event;
	uint64_t took_ns;
	bool reached;
	int slot;

	if (!vgpu_trylock(&of->poll_lock))
		return;
	while ((slot = take_marker(of, now_ns, &event)) >= 0) {
		reached = event != VGPU_EVENT_LOST && vgpu_event_is_reached(event, &took_ns);
		if (note_poll(of, slot, event, reached, took_ns, now_ns))
			vgpu_event_release(event);
	}
	vgpu_unlock(&of->poll_lock);
}

/* Admit the launch if possible, and add it to the submitted work. The caller holds the GPU's
 * lock. */
static bool enter(struct vgpu_launch *launch, struct gpu *of,
		  const struct vgpu_region_compute *record,
		  const struct vgpu_waiting_launch *waiting, uint64_t now_ns, uint64_t *again_ns)
{
	bool regardless = now_ns > waiting->since_ns + VGPU_LONGEST_WAIT_NS;
	struct vgpu_turn turn;
	uint64_t spent_ns;

	enter_spare(&of->work, launch->gpu);
	spent_ns = of->work.spent_ns + __atomic_load_n(&record->spent_ns, __ATOMIC_RELAXED) -
		   of->published.spent_ns;
	vgpu_lease_refresh(launch->gpu, &of->lease);
	turn = vgpu_lease_turn(&of->lease, now_ns);
	if (!vgpu_work_admits(&of->work, &turn, now_ns, spent_ns, waiting, again_ns) && !regardless)
		return false;
	launch->slot = vgpu_work_submitted(&of->work, &turn, now_ns, waiting);
	allow_spare(launch->gpu, launch->stream, now_ns);
	return true;
}

/* Poll the markers if a poll is due, and take the GPU's lock. False: the lock is not available. */
static bool lock_after_poll(struct gpu *of, uint64_t now_ns, bool waits)
{
	if (!vgpu_lock(&of->lock))
		return false;
	if (!vgpu_work_poll_is_due(&of->work, now_ns, waits))
		return true;
	vgpu_unlock(&of->lock);
	poll_markers(of, now_ns);
	return vgpu_lock(&of->lock);
}

/* Try once to admit the launch. False: `lease` or the work in flight forbids it; try again at
 * `*again_ns`. */
static bool try(struct vgpu_launch *launch, const struct vgpu_waiting_launch *waiting,
		uint64_t now_ns, uint64_t *again_ns, struct vgpu_lease_record *lease)
{
	struct gpu *of = &gpus[launch->gpu];
	struct vgpu_region_compute *record = record_of(launch->gpu);
	bool entered;

	enter_other_spare(launch->gpu);
	if (!lock_after_poll(of, now_ns, now_ns != waiting->since_ns)) {
		launch->gpu = -1; /* a signal handler interrupted a launch, so do not check */
		return true;
	}
	entered = enter(launch, of, record, waiting, now_ns, again_ns);
	if (!entered)
		*lease = of->lease;
	vgpu_publish(&of->published, record, &of->work, now_ns);
	vgpu_unlock(&of->lock);
	return entered;
}

void vgpu_launch_wait(struct vgpu_launch *launch, CUstream stream, uint64_t handle, uint64_t size)
{
	struct vgpu_waiting_launch waiting = {.kind = vgpu_cost_kind(handle, size),
					      .stream = (uintptr_t)stream};
	uint64_t now_ns, again_ns;
	struct vgpu_lease_record lease;

	vgpu_lease_file_find();
	if (!vgpu_launches_are_checked())
		return;
	*launch = (struct vgpu_launch){vgpu_current_gpu(), VGPU_NO_MARKER, stream, 0, 0};
	if (launch->gpu < 0 || vgpu_is_captured(stream)) {
		launch->gpu = -1;
		return;
	}
	if (spare_admits(launch->gpu, stream, waiting.kind))
		return;
	waiting.since_ns = now_ns = vgpu_now_ns();
	while (!try(launch, &waiting, now_ns, &again_ns, &lease)) {
		vgpu_lease_wait(launch->gpu, &lease, now_ns, again_ns);
		now_ns = vgpu_now_ns();
	}
	if (launch->gpu >= 0 && now_ns != waiting.since_ns)
		__atomic_add_fetch(&record_of(launch->gpu)->throttled_ns, now_ns - waiting.since_ns,
				   __ATOMIC_RELAXED);
	if (launch->gpu >= 0 && launch->slot >= 0) {
		launch->event = vgpu_event_begin(stream);
		launch->begun_ns = vgpu_now_ns();
	}
}

void vgpu_launch_mark(struct vgpu_launch *launch)
{
	uint64_t now_ns = vgpu_now_ns();

	vgpu_work_marked(&gpus[launch->gpu].work, launch->slot,
			 vgpu_event_end(launch->event, launch->stream),
			 now_ns > launch->begun_ns ? now_ns - launch->begun_ns : 0);
}

/* Note in the region since when a thread waits; a later wait of another thread replaces the time.
 * Add this thread's unchecked launches to the submitted work, because the thread's next check may
 * be late. */
uint64_t vgpu_launches_wait_begins(void)
{
	int gpu = vgpu_launches_are_checked() ? vgpu_current_gpu() : -1;
	struct vgpu_region_compute *record;
	uint64_t now_ns;

	if (gpu < 0)
		return 0;
	now_ns = vgpu_now_ns();
	record = record_of(gpu);
	__atomic_store_n(&record->waiting_since_ns, now_ns, __ATOMIC_RELAXED);
	enter_other_spare(gpu);
	if (spare.count && vgpu_lock(&gpus[gpu].lock)) {
		enter_spare(&gpus[gpu].work, gpu);
		spare.gpu_after = 0;
		vgpu_publish(&gpus[gpu].published, record, &gpus[gpu].work, 0);
		vgpu_unlock(&gpus[gpu].lock);
	}
	return now_ns;
}

void vgpu_launches_continue(void)
{
	int gpu = vgpu_launches_are_checked() ? vgpu_current_gpu() : -1;

	if (gpu < 0 || !lock_after_poll(&gpus[gpu], vgpu_now_ns(), false))
		return;
	vgpu_publish(&gpus[gpu].published, record_of(gpu), &gpus[gpu].work, 0);
	vgpu_unlock(&gpus[gpu].lock);
}

void vgpu_launches_wait_ended(uint64_t since_ns, CUstream stream, bool all, bool done)
{
	int gpu = since_ns && vgpu_launches_are_checked() ? vgpu_current_gpu() : -1;
	struct vgpu_region_compute *record;
	uint64_t now_ns, own_ns = since_ns;
	struct gpu *of;

	if (gpu < 0)
		return;
	of = &gpus[gpu];
	record = record_of(gpu);
	__atomic_compare_exchange_n(&record->waiting_since_ns, &own_ns, 0, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	if (!done)
		return;
	now_ns = vgpu_now_ns();
	if (now_ns > since_ns + SPARE_NS && !spare.count)
		spare.gpu_after = 0; /* the last check is too long ago */
	poll_markers(of, now_ns);
	if (!vgpu_lock(&of->lock))
		return;
	vgpu_work_ended(&of->work, since_ns, now_ns, (uintptr_t)stream, all);
	vgpu_publish(&of->published, record, &of->work, 0);
	vgpu_unlock(&of->lock);
}
