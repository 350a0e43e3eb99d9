/*
 * Tests of the check before launches: launch.c and submitted_work.c with a clock, events and a
 * lease that the test controls. Exits 0 if all tests pass.
 *
 *	vgpu-launch-test lost | locked | two-gpus | reused | samples | lead | kinds | streams |
 *			 spare | lane | future
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "compute/launch.c"
#include "test.h"

enum { KERNEL = 0x1000, OTHER_KERNEL = 0x2000 };

static uint64_t now_ns = 1000000000;
static vgpu_event next_event = 1;
static uint32_t pairs;	 /* recorded */
static uint64_t took_ns; /* the time between the events of each pair */
static uint64_t call_ns; /* CPU time of a launch */
static struct vgpu_lease_record lease_now = {.share_ppm = VGPU_LEASE_WHOLE_PPM};
static const struct vgpu_lease_record exclusive = {
    .sequence = 1, .start_ns = 1, .end_ns = INT64_MAX, .in_flight_us = 20000, .exclusive = true};
static bool reached;
static void (*during_query)(void);

static struct vgpu_process process = {.start = {.ns = 1}}; /* without a region */
static const volatile uint32_t launches_checked = 1;

/* What follows replaces process.c, lease_file.c, current.c and markers.c. */
struct vgpu_process_start *vgpu_process_start_page = &process.start;
__thread struct vgpu_thread vgpu_thread;
const volatile uint32_t *vgpu_launches_checked_word = &launches_checked;
__thread int vgpu_current = 1;
int vgpu_open_captures;

struct vgpu_process_start *vgpu_process_start_record(void)
{
	return &process.start;
}

uint32_t vgpu_thread_begin(void)
{
	vgpu_thread = (struct vgpu_thread){process.start.ns, (uint32_t)syscall(SYS_gettid)};
	return vgpu_thread.id;
}

uint64_t vgpu_now_ns(void)
{
	return now_ns;
}

void vgpu_lease_file_find(void)
{
}

void vgpu_lease_refresh(int gpu, struct vgpu_lease_record *lease)
{
	(void)gpu;
	*lease = lease_now;
	lease->written_ns = lease->written_ns ? lease->written_ns : now_ns;
}

void vgpu_lease_wait(int gpu, const struct vgpu_lease_record *lease, uint64_t from_ns,
		     uint64_t until_ns)
{
	(void)gpu, (void)lease, (void)from_ns;
	now_ns = until_ns;
}

int vgpu_current_find(void)
{
	return -1;
}

bool vgpu_is_captured_on(CUstream stream)
{
	return stream != NULL;
}

vgpu_event vgpu_event_begin(CUstream stream)
{
	(void)stream;
	pairs++;
	return next_event;
}

vgpu_event vgpu_event_end(vgpu_event event, CUstream stream)
{
	(void)stream;
	return event;
}

bool vgpu_event_is_reached(vgpu_event event, uint64_t *took)
{
	void (*call)(void) = during_query;
	bool result = reached;

	(void)event;
	*took = took_ns;
	during_query = NULL;
	if (call)
		call();
	return result;
}

void vgpu_event_release(vgpu_event event)
{
	(void)event;
}

static void launch_in(int gpu, uint64_t stream, uint64_t kernel)
{
	struct vgpu_launch launch;

	vgpu_current = gpu + 1;
	vgpu_launch_begin(&launch, (CUstream)(uintptr_t)stream, kernel, 1);
	now_ns += call_ns;
	vgpu_launch_end(&launch);
}

static void launch_on(int gpu, uint64_t kernel)
{
	launch_in(gpu, 0, kernel);
}

/* 0: samples are missing. */
static uint32_t cost_ns(uint64_t kernel)
{
	return vgpu_cost_known_ns(vgpu_cost_kind(kernel, 1));
}

/* Let `work_ns` pass. Then the events of all submitted work are done. */
static void finish(int gpu, uint64_t work_ns)
{
	now_ns += work_ns;
	reached = true;
	poll_markers(&gpus[gpu], now_ns);
	reached = false;
}

/* Launch and finish until each launch of the kernel is known to take `each_ns`. */
static void teach(int gpu, uint64_t kernel, uint64_t each_ns)
{
	took_ns = each_ns + call_ns;
	while (!cost_ns(kernel)) {
		launch_on(gpu, kernel);
		finish(gpu, each_ns + 1000000);
	}
}

/* If a marker's events cannot be recorded, the marker ends at its predicted time, not earlier. */
static void test_lost(void)
{
	next_event = VGPU_EVENT_LOST;
	launch_on(0, KERNEL);
	finish(0, 1000);
	MUST(gpus[0].work.count == 1);
	finish(0, 1000000);
	MUST(gpus[0].work.count == 0 && cost_ns(KERNEL) == 20000);
}

/* A marker is recorded even while another thread holds the lock. */
static void test_locked(void)
{
	struct vgpu_launch launch;

	vgpu_launch_begin(&launch, NULL, KERNEL, 1);
	MUST(launch.slot >= 0 && vgpu_trylock(&gpus[0].lock));
	vgpu_launch_end(&launch);
	vgpu_unlock(&gpus[0].lock);
	finish(0, 70000);
	MUST(gpus[0].work.count == 0);
}

/* If a thread alternates between GPUs, every launch is counted on its GPU. */
static void test_two_gpus(void)
{
	enum { LAUNCHES = 40, AT_ONCE = 4, EACH_NS = 1000 };

	for (int gpu = 0; gpu < 2; gpu++)
		teach(gpu, KERNEL, EACH_NS);
	for (int gpu = 0; gpu < 2; gpu++)
		gpus[gpu].work.spent_ns = 0;
	for (int i = 0; i < LAUNCHES; i++)
		launch_on(i / AT_ONCE % 2, KERNEL);
	MUST(gpus[0].work.spent_ns == LAUNCHES / 2 * EACH_NS);
	launch_on(0, KERNEL);
	MUST(gpus[1].work.spent_ns == LAUNCHES / 2 * EACH_NS);
}

/* As another thread: find that the marker is done, and use its events for a later launch. */
static void reuse(void)
{
	finish(0, 1000);
	launch_on(0, OTHER_KERNEL);
}

/* Events are reused while they are queried. The query must not end the marker that now uses
 * them. */
static void test_reused(void)
{
	launch_on(0, KERNEL);
	during_query = reuse;
	finish(0, 70000);
	MUST(gpus[0].work.count == 1);
}

/* Launch until a marker is made, and let its launch take `work_ns`. */
static void sample(uint64_t work_ns)
{
	took_ns = work_ns;
	while (!gpus[0].work.count)
		launch_on(0, KERNEL);
	finish(0, 1000);
}

/* The least of four samples counts, and again after one of a very different time. Then the cost
 * follows the samples of exclusive time, and beside others it only falls. The time of the poll does
 * not matter. */
static void test_samples(void)
{
	static const uint64_t first_ns[] = {400000, 100000, 300000, 200000};

	lease_now = exclusive;
	for (int i = 0; i < 4; i++)
		sample(first_ns[i]);
	MUST(cost_ns(KERNEL) == 100000 && gpus[0].work.spent_ns == 400000 + 400000 + 2 * 100000);
	sample(180000);
	MUST(cost_ns(KERNEL) == 140000);
	sample(1000000);
	for (int i = 0; i < 3; i++)
		sample(200000);
	MUST(cost_ns(KERNEL) == 200000);
	lease_now.exclusive = false;
	sample(600000);
	sample(190000);
	MUST(cost_ns(KERNEL) == 200000);
	sample(100000);
	MUST(cost_ns(KERNEL) == 125000);
	for (int i = 0; i < 3; i++)
		sample(900000);
	for (int i = 0; i < 3; i++)
		sample(800000);
	MUST(cost_ns(KERNEL) == 800000);
}

/* On an idle GPU the time between the events has the CPU time of the launch in it. */
static void test_lead(void)
{
	enum { EACH_NS = 30000, PAUSE_NS = 1000000 };

	lease_now = exclusive;
	call_ns = 4000;
	teach(0, KERNEL, EACH_NS);
	MUST(cost_ns(KERNEL) == EACH_NS);
	call_ns = 1000000; /* the thread did not run meanwhile */
	teach(0, OTHER_KERNEL, EACH_NS);
	MUST(cost_ns(OTHER_KERNEL) == EACH_NS + 1000000 - 20000);
}

/* Markers are as rare with many kinds of launches as with one: about one for each millisecond of
 * work. Each kind has its own cost. */
static void test_kinds(void)
{
	enum { KINDS = 150, ROUNDS = 20, BASE_NS = 5000 };
	uint64_t spent_ns;

	for (uint64_t kind = 1; kind <= KINDS; kind++)
		teach(0, KERNEL * kind * kind, BASE_NS + 100 * kind);
	for (uint64_t kind = 1; kind <= KINDS; kind++)
		MUST(cost_ns(KERNEL * kind * kind) == BASE_NS + 100 * kind);
	pairs = 0;
	spent_ns = gpus[0].work.spent_ns;
	for (uint64_t i = 0; i < ROUNDS * KINDS; i++) {
		took_ns = BASE_NS + 100 * (i % KINDS + 1);
		launch_on(0, KERNEL * (i % KINDS + 1) * (i % KINDS + 1));
		finish(0, 40000);
	}
	spent_ns = gpus[0].work.spent_ns - spent_ns;
	MUST(pairs >= spent_ns / 1500000 && pairs <= spent_ns / 750000);
}

/* What another stream has in flight delays no launch. */
static void test_streams(void)
{
	enum { LONG_KERNEL_NS = 60000000, SHORT_NS = 12000, GAP_NS = 40000 };
	uint64_t began_ns;
	int launches = 0;

	teach(0, KERNEL, SHORT_NS);
	teach(0, OTHER_KERNEL, LONG_KERNEL_NS);
	began_ns = now_ns;
	launch_in(0, 16, OTHER_KERNEL);
	while (now_ns < began_ns + LONG_KERNEL_NS) {
		launch_on(0, KERNEL);
		launches++;
		now_ns += GAP_NS;
	}
	MUST(launches >= LONG_KERNEL_NS / GAP_NS * 9 / 10);
}

/* Launches in turn on two streams are rarely checked. Yet those of each stream are, although each
 * check on the other stream enters them too. However short they are, a stream gets 64 at most
 * without a check, and all are counted. */
static void test_spare(void)
{
	enum { LONG_NS = 300000, SHORT_NS = 1000, ROUNDS = 100, SHORT_ONES = 5 };
	enum { MANY = 2000, MOST = 64 };
	const struct vgpu_work_stream *streams = gpus[0].work.streams;
	uint64_t began_ns, spent_ns;
	int marked = 0;

	teach(0, KERNEL, SHORT_NS);
	teach(0, OTHER_KERNEL, LONG_NS);
	began_ns = now_ns;
	for (int i = 0; i < ROUNDS * SHORT_ONES; i++) {
		if (i % SHORT_ONES == 0)
			launch_in(0, 16, OTHER_KERNEL);
		launch_on(0, KERNEL);
		now_ns += LONG_NS / SHORT_ONES;
	}
	for (int i = 0; i < VGPU_WORK_STREAMS; i++)
		marked += streams[i].marked_ns > began_ns;
	MUST(marked == 2 && spare.count > 1);
	vgpu_launches_wait_begins();
	spent_ns = gpus[0].work.spent_ns;
	for (uint64_t i = 0; i < MANY; i++) {
		launch_in(0, 16 * (1 + i % SPARE_STREAMS), KERNEL);
		for (int at = 0; at < SPARE_STREAMS; at++)
			MUST(spare.streams[at].count <= MOST);
	}
	MUST(spare.count > MOST);
	vgpu_launches_wait_begins();
	MUST(gpus[0].work.spent_ns == spent_ns + MANY * SHORT_NS);
}

/* A lane admits a launch while the container has spent less than is allowed, and little work is in
 * flight. Once it has refused one, it waits until 3 ms more are allowed. */
static void test_lane(void)
{
	enum { MS = 1000000 };
	struct vgpu_lease_record lane = {.sequence = 1, .lane_ppm = 250000, .in_flight_us = 2000};
	struct vgpu_waiting_launch launch = {.kind = vgpu_cost_kind(KERNEL, 1)};
	struct vgpu_submitted_work work = {0};
	struct vgpu_turn turn;
	uint64_t again_ns;

	launch.since_ns = lane.written_ns = lane.lane_from_ns = now_ns;
	lane.lane_base_ns = 10 * MS;
	turn = vgpu_lease_turn(&lane, now_ns + 4 * MS);
	MUST(!turn.open && turn.allowed_ns == 11 * MS);
	MUST(vgpu_work_admits(&work, &turn, now_ns + 4 * MS, 11 * MS - 1, &launch, &again_ns));
	MUST(!vgpu_work_admits(&work, &turn, now_ns + 4 * MS, 11 * MS, &launch, &again_ns));
	MUST(!vgpu_work_admits(&work, &turn, now_ns + 4 * MS, 12 * MS - 1, &launch, &again_ns));
	MUST(again_ns >= now_ns + 20 * MS && again_ns < now_ns + 20 * MS + 100);
	turn = vgpu_lease_turn(&lane, again_ns);
	MUST(vgpu_work_admits(&work, &turn, again_ns, 12 * MS - 1, &launch, &again_ns));
	MUST(!vgpu_work_admits(&work, &turn, now_ns, 90 * MS, &launch, &again_ns));
	MUST(again_ns == now_ns + 20 * MS);
	work.streams[0].free_ns = now_ns + 2 * MS + 1;
	MUST(!vgpu_work_admits(&work, &turn, now_ns, 0, &launch, &again_ns));
	lane.lane_base_ns = UINT64_MAX;
	turn = vgpu_lease_turn(&lane, now_ns + 400 * MS);
	MUST(vgpu_work_admits(&work, &turn, now_ns + 400 * MS, 1ull << 62, &launch, &again_ns));
	lane.lane_from_ns = now_ns + 1;
	MUST(!vgpu_lease_turn(&lane, now_ns).allowed_ns);
	lane.lane_from_ns = now_ns;
	MUST(!vgpu_lease_turn(&lane, now_ns + VGPU_LEASE_STALE_NS + 1).allowed_ns);
}

/* A lease from more than a second ahead is of another clock, and void. */
static void test_future(void)
{
	struct vgpu_lease_record lease = {.sequence = 1, .share_ppm = VGPU_LEASE_WHOLE_PPM};

	lease.written_ns = now_ns + 1000000000;
	MUST(!vgpu_lease_turn(&lease, now_ns).own);
	lease.written_ns++;
	MUST(vgpu_lease_turn(&lease, now_ns).own && vgpu_lease_turn(&lease, now_ns).open);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
	    {"lost", test_lost},     {"locked", test_locked},	{"two-gpus", test_two_gpus},
	    {"reused", test_reused}, {"samples", test_samples}, {"lead", test_lead},
	    {"kinds", test_kinds},   {"streams", test_streams}, {"spare", test_spare},
	    {"lane", test_lane},     {"future", test_future},	{0},
	};

	return run_test(tests, argc, argv);
}
