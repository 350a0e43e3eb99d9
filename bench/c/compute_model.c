/*
 * A model of a GPU, containers and programs in virtual time. The limiter (submitted_work.c,
 * lease.c, published.c) is the library's. bench/model.py runs the model and the real arbiter.
 *
 * Assumptions: the GPU's contexts run one at a time, in time slices, round robin; a context that
 * has no work yields at once. The streams of one context run at the same time, each at full rate; a
 * stream's work runs in the order of submission. A stream has at most 1,024 pending launches. Each
 * process has one context, and one thread for each stream. If the GPU is idle, the first event of a
 * marker is done when it is recorded, 2 us before the launch. The kernel wakes a sleeping thread up
 * to `wake_ns` late; a thread that waits for the GPU wakes 4 to 8 us late.
 */
#include <stdlib.h>
#include <string.h>

/* The file, because each model begins without learned costs. */
#include "compute/launch_costs.c"

#include "compute/published.h"
#include "compute/submitted_work.h"

#pragma GCC visibility push(default)
#include "compute_model.h"
#pragma GCC visibility pop

enum {
	MOST_PROCESSES = 16,
	MOST_THREADS = 8,
	MOST_CONTAINERS = 16,
	PENDING_MOST = 1024,
	RING = 4096,
	STEPS = 1 << 16,
};

#define NEVER	     UINT64_MAX
#define MS	     UINT64_C(1000000)
#define LAUNCH_NS    2000
#define SYNC_WAKE_NS 4000

struct thread {
	struct model_thread does;
	uint64_t stream;
	uint32_t next_kernel, in_step;
	bool waits;		/* for the GPU, at the end of a step */
	bool throttled;		/* a launch waits for a window */
	uint64_t wake_ns;	/* when the thread runs next, or NEVER while it waits for the GPU */
	uint64_t waits_from_ns; /* since when the launch, or the end of a step, waits */
	uint64_t item_ns[RING], begin_ns[RING], end_ns[RING];
	uint64_t submitted, finished; /* items */
	uint64_t left_ns;	      /* remaining work of the oldest item */
	uint64_t steps, step_from_ns;
	uint32_t *step_us;
};

struct process {
	int container, threads;
	struct thread thread[MOST_THREADS];
	struct vgpu_submitted_work work;
	struct vgpu_published published;
	uint64_t done_ns; /* the GPU's time for this process */
};

struct container {
	struct vgpu_lease_record records[2];
	struct vgpu_lease_record lease;
	struct vgpu_region_compute record;
	bool stopped;		  /* all its processes are killed */
	bool unchecked;		  /* its launches are not checked */
	uint64_t frozen_until_ns; /* its processes do not run before */
};

struct model {
	struct model_options options;
	uint64_t now_ns, slice_end_ns, switch_end_ns, seed;
	int processes, current, last;
	struct process process[MOST_PROCESSES];
	struct container container[MOST_CONTAINERS];
	uint64_t idle_ns;
};

struct model *model_new(const struct model_options *options, uint64_t now_ns)
{
	struct model *model = calloc(1, sizeof(*model));

	memset(costs, 0, sizeof(costs));
	model->options = *options;
	model->now_ns = now_ns;
	model->current = model->last = -1;
	model->seed = 1;
	return model;
}

void model_free(struct model *model)
{
	for (int i = 0; i < MOST_PROCESSES; i++)
		for (int j = 0; j < MOST_THREADS; j++)
			free(model->process[i].thread[j].step_us);
	free(model);
}

void model_add_thread(struct model *model, int number, const struct model_thread *does)
{
	struct process *process = &model->process[number];
	struct thread *thread = &process->thread[process->threads++];

	thread->does = *does;
	thread->stream = 16 * (uint64_t)process->threads;
	thread->wake_ns = thread->step_from_ns = model->now_ns + (uint64_t)number * 7001;
	thread->step_us = calloc(STEPS, sizeof(*thread->step_us));
}

int model_add(struct model *model, int container, const struct model_thread *does)
{
	model->process[model->processes].container = container;
	model_add_thread(model, model->processes, does);
	return model->processes++;
}

static uint64_t jitter(struct model *model, uint64_t most_ns)
{
	model->seed = model->seed * UINT64_C(6364136223846793005) + 1442695040888963407;
	return most_ns ? (model->seed >> 33) % most_ns : 0;
}

void model_write_lease(struct model *model, int container, uint32_t offset, const void *data,
		       uint32_t bytes)
{
	struct container *of = &model->container[container];

	memcpy((char *)of->records + offset, data, bytes);
	if (!vgpu_lease_read(of->records, &of->lease) || of->stopped ||
	    model->now_ns < of->frozen_until_ns)
		return;
	for (int i = 0; i < model->processes; i++)
		for (int j = 0; j < model->process[i].threads; j++) {
			struct thread *thread = &model->process[i].thread[j];
			uint64_t at_ns = model->now_ns + jitter(model, model->options.wake_ns);

			if (model->process[i].container == container && thread->throttled &&
			    thread->wake_ns > at_ns)
				thread->wake_ns = at_ns;
		}
}

void model_sample(const struct model *model, int container, uint64_t out[8])
{
	memcpy(out, &model->container[container].record, sizeof(struct vgpu_region_compute));
}

void model_overwrite(struct model *model, int container, const uint64_t record[8])
{
	memcpy(&model->container[container].record, record, sizeof(struct vgpu_region_compute));
}

static bool thread_has_work(const struct thread *thread)
{
	return thread->finished < thread->submitted;
}

static bool has_work(const struct process *process)
{
	for (int i = 0; i < process->threads; i++)
		if (thread_has_work(&process->thread[i]))
			return true;
	return false;
}

void model_freeze(struct model *model, int container, uint64_t until_ns)
{
	model->container[container].frozen_until_ns = until_ns;
	for (int i = 0; i < model->processes; i++)
		for (int j = 0; j < model->process[i].threads; j++) {
			uint64_t *wake_ns = &model->process[i].thread[j].wake_ns;

			if (model->process[i].container == container)
				*wake_ns = later(*wake_ns, until_ns);
		}
}

void model_check_launches(struct model *model, int container, bool checked)
{
	model->container[container].unchecked = !checked;
}

void model_read(const struct model *model, int number, uint64_t out[4])
{
	const struct process *process = &model->process[number];

	out[0] = process->done_ns;
	out[1] = model->idle_ns;
	out[2] = process->thread[0].submitted;
	out[3] = process->thread[0].steps;
}

uint32_t model_steps(const struct model *model, int process, uint32_t *out_us, uint32_t most)
{
	const struct thread *thread = &model->process[process].thread[0];
	uint32_t count = thread->steps < most ? (uint32_t)thread->steps : most;

	count = count < STEPS ? count : STEPS;
	for (uint32_t i = 0; i < count; i++)
		out_us[i] = thread->step_us[(thread->steps - count + i) % STEPS];
	return count;
}

static void begin_item(const struct model *model, struct thread *thread)
{
	uint64_t *begin_ns = &thread->begin_ns[thread->finished % RING];

	if (!*begin_ns)
		*begin_ns = later(model->now_ns, model->switch_end_ns);
}

/* Choose the next context with work, or -1 if none has work. */
static void choose(struct model *model)
{
	int from = model->current < 0 ? model->last : model->current;

	model->current = -1;
	for (int i = 1; i <= model->processes && model->current < 0; i++) {
		int next = (from + i + model->processes) % model->processes;

		if (has_work(&model->process[next]))
			model->current = next;
	}
	if (model->current < 0)
		return;
	model->switch_end_ns =
	    model->now_ns +
	    (model->current != model->last && model->last >= 0 ? model->options.switch_ns : 0);
	model->last = model->current;
	model->slice_end_ns = model->switch_end_ns + model->options.slice_ns;
	for (int i = 0; i < model->process[model->current].threads; i++)
		if (thread_has_work(&model->process[model->current].thread[i]))
			begin_item(model, &model->process[model->current].thread[i]);
}

void model_kill(struct model *model, int container)
{
	model->container[container].stopped = true;
	for (int i = 0; i < model->processes; i++) {
		struct process *process = &model->process[i];

		if (process->container != container)
			continue;
		for (int j = 0; j < process->threads; j++) {
			process->thread[j].wake_ns = NEVER;
			process->thread[j].finished = process->thread[j].submitted;
		}
	}
	choose(model);
}

static uint64_t gpu_event_ns(const struct model *model)
{
	uint64_t next_ns = model->slice_end_ns;

	if (model->current < 0)
		return NEVER;
	if (model->now_ns < model->switch_end_ns)
		return model->switch_end_ns;
	for (int i = 0; i < model->process[model->current].threads; i++) {
		const struct thread *thread = &model->process[model->current].thread[i];

		if (thread_has_work(thread))
			next_ns = earlier(next_ns, model->now_ns + thread->left_ns);
	}
	return next_ns;
}

static void finish_item(struct model *model, struct process *process, struct thread *thread)
{
	const struct container *container = &model->container[process->container];

	thread->end_ns[thread->finished % RING] = model->now_ns;
	thread->finished++;
	if (thread_has_work(thread)) {
		thread->left_ns = thread->item_ns[thread->finished % RING];
		begin_item(model, thread);
	}
	if (thread->wake_ns == NEVER && !container->stopped &&
	    (!thread->waits || !thread_has_work(thread)))
		thread->wake_ns = later(model->now_ns + SYNC_WAKE_NS + jitter(model, SYNC_WAKE_NS),
					container->frozen_until_ns);
}

/* Let the GPU work until `at_ns`, which is no later than its next event. */
static void advance(struct model *model, uint64_t at_ns)
{
	uint64_t passed_ns = at_ns - model->now_ns;
	struct process *process;

	if (model->current < 0 || model->now_ns < model->switch_end_ns) {
		model->idle_ns += model->current < 0 ? passed_ns : 0;
		model->now_ns = at_ns;
		return;
	}
	process = &model->process[model->current];
	process->done_ns += passed_ns;
	model->now_ns = at_ns;
	for (int i = 0; i < process->threads; i++) {
		struct thread *thread = &process->thread[i];

		if (!thread_has_work(thread))
			continue;
		thread->left_ns -= passed_ns;
		if (!thread->left_ns)
			finish_item(model, process, thread);
	}
	if (!has_work(process) || at_ns >= model->slice_end_ns)
		choose(model);
}

/* A marker's event is the number of its thread, and of its item plus 1. */
static void poll_markers(struct model *model, struct process *process)
{
	struct vgpu_turn turn =
	    vgpu_lease_turn(&model->container[process->container].lease, model->now_ns);
	int slot;

	while ((slot = vgpu_work_pollable(&process->work, model->now_ns)) >= 0) {
		uint64_t event = process->work.markers[slot].event;
		const struct thread *thread = &process->thread[event >> 48];
		uint64_t item = (event & ((UINT64_C(1) << 48) - 1)) - 1;

		if (item < thread->finished)
			vgpu_work_finished(&process->work, slot, &turn, model->now_ns,
					   thread->end_ns[item % RING] -
					       thread->begin_ns[item % RING]);
		else
			vgpu_work_polled(&process->work, slot, model->now_ns);
	}
}

static bool is_checked(const struct model *model, const struct process *process)
{
	return model->options.limited && !model->container[process->container].unchecked;
}

static bool is_first(const struct thread *thread)
{
	return thread->submitted < thread->does.first_launches;
}

static void submit(struct model *model, struct process *process, struct thread *thread)
{
	uint64_t item = thread->submitted % RING;

	thread->item_ns[item] = thread->does.kernel_ns[thread->next_kernel];
	thread->begin_ns[item] = 0;
	if (is_first(thread))
		thread->item_ns[item] = thread->does.first_ns;
	else
		thread->next_kernel = (thread->next_kernel + 1) % thread->does.kernel_count;
	if (!thread_has_work(thread))
		thread->left_ns = thread->item_ns[item];
	thread->submitted++;
	if (model->current < 0)
		choose(model);
	else if (process == &model->process[model->current] &&
		 thread->submitted == thread->finished + 1)
		begin_item(model, thread);
	if (thread->begin_ns[item] == model->now_ns)
		thread->begin_ns[item] -= LAUNCH_NS;
}

/* Submit the thread's next launch if the limiter admits it, as launch.c does, but with a check
 * for each. */
static bool launch(struct model *model, struct process *process, struct thread *thread,
		   uint64_t *again_ns)
{
	struct container *container = &model->container[process->container];
	struct vgpu_submitted_work *work = &process->work;
	uint64_t number = (uint64_t)(process - model->process) * MOST_THREADS +
			  (uint64_t)(thread - process->thread);
	struct vgpu_waiting_launch waiting = {
	    vgpu_cost_kind(8 * (number * 1000 + thread->next_kernel + 1), 0), thread->stream,
	    thread->throttled ? thread->waits_from_ns : model->now_ns};
	struct vgpu_turn turn;
	uint64_t spent_ns;
	bool admits;
	int slot;

	if (!is_checked(model, process)) {
		submit(model, process, thread);
		return true;
	}
	if (vgpu_work_poll_is_due(work, model->now_ns, thread->throttled))
		poll_markers(model, process);
	turn = vgpu_lease_turn(&container->lease, model->now_ns);
	spent_ns = container->record.spent_ns + work->spent_ns - process->published.spent_ns;
	admits = vgpu_work_admits(work, &turn, model->now_ns, spent_ns, &waiting, again_ns);
	if (admits) {
		slot = vgpu_work_submitted(work, &turn, model->now_ns, &waiting);
		submit(model, process, thread);
		if (slot >= 0)
			vgpu_work_marked(work, slot,
					 (uint64_t)(thread - process->thread) << 48 |
					     thread->submitted,
					 LAUNCH_NS);
	}
	vgpu_publish(&process->published, &container->record, work, model->now_ns);
	return admits;
}

/* Finish a step whose work is done, as the hooks of synchronizing calls do. */
static void end_step(struct model *model, struct process *process, struct thread *thread)
{
	thread->waits = false;
	if (is_checked(model, process)) {
		struct vgpu_region_compute *record = &model->container[process->container].record;

		poll_markers(model, process);
		vgpu_work_ended(&process->work, record->waiting_since_ns, model->now_ns,
				thread->stream, false);
		record->waiting_since_ns = 0;
		vgpu_publish(&process->published, record, &process->work, 0);
	}
	thread->step_us[thread->steps++ % STEPS] =
	    (uint32_t)((model->now_ns - thread->step_from_ns) / 1000);
	thread->wake_ns = model->now_ns + thread->does.step_gap_ns;
	thread->step_from_ns = thread->wake_ns;
	thread->in_step = 0;
}

/* Run the thread: it launches, or sleeps. */
static void run(struct model *model, struct process *process, struct thread *thread)
{
	uint64_t again_ns = NEVER, gap_ns = thread->does.gap_ns;

	if (thread->waits && !thread_has_work(thread)) {
		end_step(model, process, thread);
		return;
	}
	if (thread->waits || thread->submitted - thread->finished >= PENDING_MOST) {
		thread->wake_ns = NEVER;
		return;
	}
	if (!launch(model, process, thread, &again_ns)) {
		if (!thread->throttled)
			thread->waits_from_ns = model->now_ns;
		thread->throttled = true;
		again_ns = earlier(later(again_ns, model->now_ns + 1000), model->now_ns + 50 * MS);
		thread->wake_ns = again_ns + jitter(model, model->options.wake_ns);
		return;
	}
	thread->throttled = false;
	thread->wake_ns =
	    model->now_ns + LAUNCH_NS + gap_ns - gap_ns / 5 + jitter(model, gap_ns * 2 / 5 + 1);
	if (thread->does.launches && !is_first(thread) &&
	    ++thread->in_step == thread->does.launches) {
		thread->waits = true;
		thread->waits_from_ns = model->now_ns;
		thread->wake_ns = NEVER;
		if (is_checked(model, process))
			model->container[process->container].record.waiting_since_ns =
			    model->now_ns;
	}
}

void model_run(struct model *model, uint64_t until_ns)
{
	while (model->now_ns < until_ns) {
		uint64_t next_ns = earlier(gpu_event_ns(model), until_ns);

		for (int i = 0; i < model->processes; i++)
			for (int j = 0; j < model->process[i].threads; j++)
				next_ns = earlier(next_ns, model->process[i].thread[j].wake_ns);
		if (next_ns > model->now_ns || gpu_event_ns(model) <= model->now_ns)
			advance(model, later(next_ns, model->now_ns));
		for (int i = 0; i < model->processes; i++)
			for (int j = 0; j < model->process[i].threads; j++)
				if (model->process[i].thread[j].wake_ns <= model->now_ns)
					run(model, &model->process[i],
					    &model->process[i].thread[j]);
	}
}
