#include "compute/launch.h"

#include "compute/current.h"
#include "compute/markers.h"
#include "compute/submitted_work.h"
#include "os/lock.h"
#include "region/mapping.h"
#include "region/process.h"
#include "vgpu/region.h"

#define POLL_MAX_NS UINT64_C(100000)	 /* longest time between polls of markers */
#define PUBLISH_NS  UINT64_C(200000)	 /* smaller changes are not written to the region */
#define LONG_NS	    UINT64_C(1000000000) /* longer unfinished work is noted in the region */

#define SPARE_NS 50000u /* most work that a thread may submit without a check */

#define BLOCKED_NS UINT64_C(20000)

/* The shortest and the longest pause between polls for the end of a kind's first launch. */
#define FIRST_POLL_NS	  UINT64_C(20000)
#define FIRST_POLL_MAX_NS UINT64_C(1000000)

enum { MARKERS_AT_ONCE = 8, SPARE_LAUNCHES = 16 };

/* The state of one GPU in this process. */
static struct gpu {
	struct vgpu_lock lock;
	struct vgpu_lock poll_lock; /* held by the thread that polls markers; taken before `lock` */
	struct vgpu_submitted_work work;
	struct vgpu_lease lease;
	uint64_t published_ns; /* the busy_until_ns that this process last wrote into the region */
	uint64_t busy_ns;      /* the part of work.busy_ns that was added to the region */
} gpus[VGPU_ENVIRONMENT_MAX_GPUS];

/* The unchecked launches of this thread since its last check. They cost only a few nanoseconds
 * each. The next check adds them to the submitted work. */
static __thread struct {
	int gpu_after; /* the GPU's index in the grant + 1; 0: the next launch must be checked */
	CUstream stream;
	uint32_t count, spent_ns;
	uint8_t kinds[SPARE_LAUNCHES];
} spare;

static bool spare_admits(int gpu, CUstream stream, uint8_t kind)
{
	uint32_t cost_ns = __atomic_load_n(&gpus[gpu].work.cost_ns[kind], __ATOMIC_RELAXED);

	if (spare.gpu_after != gpu + 1 || spare.stream != stream || !cost_ns ||
	    spare.count == SPARE_LAUNCHES || spare.spent_ns + cost_ns > SPARE_NS)
		return false;
	spare.kinds[spare.count++] = kind;
	spare.spent_ns += cost_ns;
	return true;
}

/* Add this thread's unchecked launches to the GPU's submitted work. The caller holds the GPU's
 * lock. */
static void enter_spare(struct vgpu_submitted_work *work, int gpu, uint64_t now_ns)
{
	if (spare.gpu_after == gpu + 1)
		for (uint32_t i = 0; i < spare.count; i++)
			vgpu_work_add(work, now_ns, spare.kinds[i],
				      (uint64_t)(uintptr_t)spare.stream);
	spare.gpu_after = 0;
	spare.count = spare.spent_ns = 0;
}

/* Add the thread's unchecked launches to the submitted work of another GPU, if they were on that
 * one. */
static void enter_other_spare(int gpu, uint64_t now_ns)
{
	int other = spare.gpu_after - 1;

	if (other < 0 || other == gpu || !vgpu_lock(&gpus[other].lock))
		return;
	enter_spare(&gpus[other].work, other, now_ns);
	vgpu_unlock(&gpus[other].lock);
}

/* The GPU's record in the region, or NULL if this process has no region. */
static struct vgpu_region_compute *record_of(int gpu)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) ? vgpu_view_compute(&process->view, gpu) : NULL;
}

/* Add finished work to the region. Periods in which several of the container's processes had work
 * are counted only once. */
static void count_work(struct gpu *of, struct vgpu_region_compute *record)
{
	uint64_t work_ns = of->work.busy_ns - of->busy_ns, end_ns = of->work.finished_ns;
	uint64_t from_ns = __atomic_load_n(&record->counted_ns, __ATOMIC_RELAXED);

	of->busy_ns = of->work.busy_ns;
	do
		if (from_ns >= end_ns)
			return;
	while (!__atomic_compare_exchange_n(&record->counted_ns, &from_ns, end_ns, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	if (work_ns > end_ns - from_ns)
		work_ns = end_ns - from_ns;
	__atomic_add_fetch(&record->busy_ns, work_ns, __ATOMIC_RELAXED);
}

/* Write the process's work into the region. The field busy_until_ns is the latest end of work of
 * any process of the container. So each process may raise the value, but may lower only a value
 * that it wrote itself. */
static void publish(struct gpu *of, struct vgpu_region_compute *record, uint64_t now_ns)
{
	uint64_t free_ns = vgpu_work_free_ns(&of->work, now_ns);
	uint64_t shared_ns = __atomic_load_n(&record->busy_until_ns, __ATOMIC_RELAXED);
	const struct vgpu_marker *oldest = vgpu_work_oldest(&of->work);
	bool raises = free_ns > shared_ns + PUBLISH_NS;
	bool lowers = shared_ns == of->published_ns && free_ns + PUBLISH_NS < shared_ns;

	if ((raises || lowers) &&
	    __atomic_compare_exchange_n(&record->busy_until_ns, &shared_ns, free_ns, false,
					__ATOMIC_RELAXED, __ATOMIC_RELAXED))
		of->published_ns = free_ns;
	if (of->work.busy_ns != of->busy_ns)
		count_work(of, record);
	if (oldest && now_ns > oldest->from_ns + LONG_NS && vgpu_work_event(oldest) &&
	    of->work.polled_ns + PUBLISH_NS > now_ns)
		__atomic_store_n(&record->unfinished_since_ns, oldest->from_ns, __ATOMIC_RELAXED);
}

/* The event of the oldest marker. 0: there is no marker, or its event is not recorded yet. */
static vgpu_event oldest_event(struct gpu *of)
{
	const struct vgpu_marker *oldest;
	vgpu_event event = 0;

	if (!vgpu_lock(&of->lock))
		return 0;
	oldest = vgpu_work_oldest(&of->work);
	if (oldest)
		event = vgpu_work_event(oldest);
	vgpu_unlock(&of->lock);
	return event;
}

/* End the oldest marker if its work is done. False: the work is unfinished. */
static bool end_marker(struct gpu *of, vgpu_event event, bool exactly)
{
	bool ended = event != VGPU_EVENT_LOST && vgpu_event_is_reached(event);

	if (!vgpu_lock(&of->lock))
		return false;
	if (event == VGPU_EVENT_LOST)
		ended = vgpu_work_lost(&of->work, vgpu_now_ns());
	else if (ended) /* `exactly` is false if the GPU already does later work */
		vgpu_work_finished(&of->work, vgpu_now_ns(),
				   exactly && of->work.count == 1 && !of->work.open.kind_count);
	else
		vgpu_work_polled(&of->work, vgpu_now_ns());
	vgpu_unlock(&of->lock);
	return ended;
}

/* End up to `most` finished markers. The caller does not hold the GPU's lock, because the function
 * calls the driver. Only one thread polls: otherwise another thread could end the marker during the
 * query, and reuse the marker's event for a later launch. */
static void poll_markers(struct gpu *of, int most, bool exactly)
{
	vgpu_event event;

	if (!vgpu_trylock(&of->poll_lock))
		return;
	while (most-- && (event = oldest_event(of)) && end_marker(of, event, exactly))
		vgpu_event_release(event);
	vgpu_unlock(&of->poll_lock);
}

/* Admit the launch if possible, and add it to the submitted work. The caller holds the GPU's
 * lock. */
static bool enter(struct vgpu_launch *launch, struct gpu *of,
		  const struct vgpu_waiting_launch *waiting, uint64_t now_ns, uint64_t *again_ns)
{
	bool regardless = now_ns > waiting->since_ns + VGPU_LONGEST_WAIT_NS;
	struct vgpu_turn turn;

	enter_spare(&of->work, launch->gpu, now_ns);
	vgpu_lease_refresh(launch->gpu, &of->lease);
	turn = vgpu_lease_turn(&of->lease, now_ns);
	if (!vgpu_work_admits(&of->work, &turn, now_ns, waiting, again_ns) && !regardless) {
		launch->slot = vgpu_work_paused(&of->work, &turn, now_ns);
		return false;
	}
	launch->slot = vgpu_work_submitted(&of->work, now_ns, waiting->kind,
					   (uint64_t)(uintptr_t)launch->stream);
	spare.gpu_after = launch->gpu + 1;
	spare.stream = launch->stream;
	return true;
}

/* Poll the markers if a poll is due, and take the GPU's lock. False: the lock is not available. */
static bool lock_after_poll(struct gpu *of, uint64_t now_ns)
{
	if (!vgpu_lock(&of->lock))
		return false;
	if (!of->work.count || now_ns <= of->work.polled_ns + POLL_MAX_NS)
		return true;
	vgpu_unlock(&of->lock);
	poll_markers(of, MARKERS_AT_ONCE, false);
	return vgpu_lock(&of->lock);
}

/* Try once to admit the launch. False: `lease` or the work in flight forbids it; try again at
 * `*again_ns`. */
static bool try(struct vgpu_launch *launch, const struct vgpu_waiting_launch *waiting,
		uint64_t now_ns, uint64_t *again_ns, struct vgpu_lease *lease)
{
	struct gpu *of = &gpus[launch->gpu];
	struct vgpu_region_compute *record = record_of(launch->gpu);
	bool entered;

	enter_other_spare(launch->gpu, now_ns);
	if (!lock_after_poll(of, now_ns)) {
		launch->gpu = -1; /* a signal handler interrupted a launch, so do not check */
		return true;
	}
	entered = enter(launch, of, waiting, now_ns, again_ns);
	if (!entered)
		*lease = of->lease;
	if (record) {
		if (now_ns > record->launched_ns + PUBLISH_NS)
			__atomic_store_n(&record->launched_ns, now_ns, __ATOMIC_RELAXED);
		publish(of, record, now_ns);
	}
	vgpu_unlock(&of->lock);
	return entered;
}

static void count_wait(int gpu, uint64_t waited_ns)
{
	struct vgpu_region_compute *record = record_of(gpu);

	if (!record)
		return;
	__atomic_add_fetch(&record->throttled_ns, waited_ns, __ATOMIC_RELAXED);
	__atomic_add_fetch(&record->throttled_count, 1, __ATOMIC_RELAXED);
}

void vgpu_launch_wait(struct vgpu_launch *launch, CUstream stream, uint64_t handle, uint64_t size)
{
	struct vgpu_waiting_launch waiting = {.kind = vgpu_work_kind(handle, size)};
	uint64_t now_ns, again_ns;
	struct vgpu_lease lease;

	vgpu_lease_file_find();
	if (!vgpu_launches_are_checked())
		return;
	*launch = (struct vgpu_launch){vgpu_current_gpu(), VGPU_NO_MARKER, stream};
	if (launch->gpu < 0 || vgpu_is_captured(stream)) {
		launch->gpu = -1;
		return;
	}
	if (spare_admits(launch->gpu, stream, waiting.kind))
		return;
	waiting.since_ns = now_ns = vgpu_now_ns();
	while (!try(launch, &waiting, now_ns, &again_ns, &lease)) {
		vgpu_launch_end(launch);
		vgpu_lease_wait(launch->gpu, &lease, now_ns, again_ns);
		now_ns = vgpu_now_ns();
	}
	if (now_ns != waiting.since_ns && launch->gpu >= 0)
		count_wait(launch->gpu, now_ns - waiting.since_ns);
}

void vgpu_launch_mark(struct vgpu_launch *launch)
{
	vgpu_work_marked(&gpus[launch->gpu].work, launch->slot, vgpu_event_record(launch->stream));
}

/* True if the oldest marker has an event, and its launches were submitted to the stream before
 * `from_ns`. If `first` is set, one of them must also be the first of its kind. */
static bool awaits(struct gpu *of, uint64_t from_ns, bool first, uint64_t stream)
{
	const struct vgpu_marker *oldest;
	bool found;

	if (!vgpu_lock(&of->lock))
		return false;
	oldest = vgpu_work_oldest(&of->work);
	found = oldest && vgpu_work_event(oldest) && oldest->from_ns <= from_ns &&
		(oldest->probes || !first) && (stream == VGPU_STREAMS || stream == oldest->stream);
	vgpu_unlock(&of->lock);
	return found;
}

/* Poll the oldest marker, and publish the result in the region. */
static void poll_oldest(int gpu)
{
	struct vgpu_region_compute *record = record_of(gpu);

	poll_markers(&gpus[gpu], 1, true);
	if (!record || !vgpu_lock(&gpus[gpu].lock))
		return;
	publish(&gpus[gpu], record, vgpu_now_ns());
	vgpu_unlock(&gpus[gpu].lock);
}

/* Note in the region since when a thread waits; a later wait of another thread replaces the time.
 * Add this thread's unchecked launches to the submitted work, because the thread's next check may
 * be late. */
static void begin_wait(int gpu, uint64_t now_ns)
{
	struct gpu *of = &gpus[gpu];
	struct vgpu_region_compute *record = record_of(gpu);

	if (record)
		__atomic_store_n(&record->waiting_since_ns, now_ns, __ATOMIC_RELAXED);
	enter_other_spare(gpu, now_ns);
	if (!spare.count || !vgpu_lock(&of->lock))
		return;
	enter_spare(&of->work, gpu, now_ns);
	if (record)
		publish(of, record, now_ns);
	vgpu_unlock(&of->lock);
}

uint64_t vgpu_launches_wait_begins(CUstream stream, bool all)
{
	uint64_t of_stream = all ? VGPU_STREAMS : (uint64_t)(uintptr_t)stream;
	uint64_t since_ns, now_ns, pause_ns;
	int gpu;

	if (!vgpu_launches_are_checked())
		return 0;
	since_ns = now_ns = vgpu_now_ns();
	gpu = vgpu_current_gpu();
	if (gpu >= 0)
		begin_wait(gpu, now_ns);
	while (gpu >= 0 && now_ns <= since_ns + LONG_NS &&
	       awaits(&gpus[gpu], since_ns, true, of_stream)) {
		poll_oldest(gpu);
		pause_ns = (now_ns - since_ns) / 16 + FIRST_POLL_NS;
		vgpu_pause(pause_ns < FIRST_POLL_MAX_NS ? pause_ns : FIRST_POLL_MAX_NS);
		now_ns = vgpu_now_ns();
	}
	if (now_ns > since_ns + LONG_NS)
		poll_oldest(gpu);
	return since_ns;
}

void vgpu_launches_continue(void)
{
	int gpu = vgpu_launches_are_checked() ? vgpu_current_gpu() : -1;

	if (gpu >= 0 && awaits(&gpus[gpu], vgpu_now_ns() - LONG_NS, false, VGPU_STREAMS))
		poll_oldest(gpu);
}

void vgpu_launches_wait_ended(uint64_t since_ns, CUstream stream, bool all, bool done)
{
	int gpu = since_ns || vgpu_launches_are_checked() ? vgpu_current_gpu() : -1;
	struct vgpu_region_compute *record;
	uint64_t now_ns, own_ns = since_ns;
	struct gpu *of;
	bool blocked;

	if (gpu < 0)
		return;
	of = &gpus[gpu];
	record = record_of(gpu);
	if (record && since_ns)
		__atomic_compare_exchange_n(&record->waiting_since_ns, &own_ns, 0, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	if (!done || !vgpu_launches_are_checked())
		return;
	/* If the call returned at once, its work had ended at an unknown earlier time. */
	blocked = since_ns && vgpu_now_ns() > since_ns + BLOCKED_NS;
	poll_markers(of, VGPU_WORK_MARKERS, blocked);
	if (!vgpu_lock(&of->lock))
		return;
	now_ns = vgpu_now_ns();
	if (blocked)
		vgpu_work_synchronized(&of->work, now_ns,
				       all ? VGPU_STREAMS : (uint64_t)(uintptr_t)stream);
	if (record) {
		if (blocked && now_ns > since_ns + LONG_NS && of->work.finished_ns > since_ns)
			__atomic_store_n(&record->unfinished_since_ns, since_ns, __ATOMIC_RELAXED);
		publish(of, record, now_ns);
	}
	vgpu_unlock(&of->lock);
}
