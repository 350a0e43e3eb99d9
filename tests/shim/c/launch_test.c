/*
 * Tests of the check before launches: launch.c and submitted_work.c with a clock, events and a
 * lease that the test controls. Exits 0 if all tests pass.
 *
 *	vgpu-launch-test lost | locked | two-gpus | reused | waited
 */
#include <sys/syscall.h>
#include <unistd.h>

#include "compute/launch.c"
#include "test.h"

enum { KERNEL = 0x1000, OTHER_KERNEL = 0x2000 };

static uint64_t now_ns = 1000000000;
static vgpu_event next_event = 1;
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

void vgpu_pause(uint64_t pause_ns)
{
	now_ns += pause_ns;
}

void vgpu_lease_file_find(void)
{
}

void vgpu_lease_refresh(int gpu, struct vgpu_lease *lease)
{
	(void)gpu;
	lease->share_ppm = VGPU_LEASE_WHOLE_PPM;
}

void vgpu_lease_wait(int gpu, const struct vgpu_lease *lease, uint64_t from_ns, uint64_t until_ns)
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

vgpu_event vgpu_event_record(CUstream stream)
{
	(void)stream;
	return next_event;
}

bool vgpu_event_is_reached(vgpu_event event)
{
	void (*call)(void) = during_query;
	bool result = reached;

	(void)event;
	during_query = NULL;
	if (call)
		call();
	return result;
}

void vgpu_event_release(vgpu_event event)
{
	(void)event;
}

static void launch_on(int gpu, uint64_t kernel)
{
	struct vgpu_launch launch;

	vgpu_current = gpu + 1;
	vgpu_launch_begin(&launch, NULL, kernel, 1);
	vgpu_launch_end(&launch);
}

static uint32_t cost_ns(int gpu)
{
	return gpus[gpu].work.cost_ns[vgpu_work_kind(KERNEL, 1)];
}

/* Let `work_ns` pass. Then the events of all submitted work are done. */
static void finish(int gpu, uint64_t work_ns)
{
	now_ns += work_ns;
	reached = true;
	poll_markers(&gpus[gpu], VGPU_WORK_MARKERS, true);
	reached = false;
}

/* If a marker's event cannot be recorded, the marker ends at its predicted time, not earlier. */
static void test_lost(void)
{
	next_event = VGPU_EVENT_LOST;
	launch_on(0, KERNEL);
	finish(0, 1000);
	MUST(gpus[0].work.count == 1);
	finish(0, 1000000);
	MUST(gpus[0].work.count == 0 && cost_ns(0) == 20000);
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
	MUST(gpus[0].work.count == 0 && cost_ns(0) == 70000);
}

static uint32_t entered(int gpu)
{
	const struct vgpu_submitted_work *work = &gpus[gpu].work;
	uint32_t launches = work->open.launches[0];

	for (uint32_t i = 0; i < work->count; i++)
		launches += work->markers[(work->first + i) % VGPU_WORK_MARKERS].launches[0];
	return launches;
}

/* If a thread alternates between GPUs, every launch is counted on its GPU. */
static void test_two_gpus(void)
{
	enum { LAUNCHES = 40, AT_ONCE = 4 };

	for (int gpu = 0; gpu < 2; gpu++) {
		launch_on(gpu, KERNEL);
		finish(gpu, 1000);
	}
	for (int i = 0; i < LAUNCHES; i++)
		launch_on(i / AT_ONCE % 2, KERNEL);
	MUST(entered(0) == LAUNCHES / 2);
	launch_on(0, KERNEL);
	MUST(entered(1) == LAUNCHES / 2);
}

/* As another thread: find that the marker is done, and use its event for a later launch. */
static void reuse(void)
{
	finish(0, 1000);
	launch_on(0, OTHER_KERNEL);
}

/* An event is reused while it is queried. The query must not end the marker that now uses it. */
static void test_reused(void)
{
	launch_on(0, KERNEL);
	during_query = reuse;
	finish(0, 70000);
	MUST(gpus[0].work.count == 1);
}

/* When a call has waited for the GPU, the time of the wait is divided among all markers. */
static void test_waited(void)
{
	enum { COST_NS = 50000, ROUNDS = 10, LAUNCHES = 107 };
	uint64_t since_ns;

	launch_on(0, KERNEL);
	finish(0, COST_NS);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < LAUNCHES; i++)
			launch_on(0, KERNEL);
		MUST(gpus[0].work.count > 2);
		since_ns = vgpu_launches_wait_begins(NULL, false);
		now_ns += LAUNCHES * COST_NS;
		reached = true;
		vgpu_launches_wait_ended(since_ns, NULL, false, true);
		reached = false;
		MUST(gpus[0].work.count == 0 && cost_ns(0) > COST_NS * 9 / 10 &&
		     cost_ns(0) < COST_NS * 11 / 10);
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
	    {"lost", test_lost},     {"locked", test_locked}, {"two-gpus", test_two_gpus},
	    {"reused", test_reused}, {"waited", test_waited}, {0},
	};

	return run_test(tests, argc, argv);
}
