/*
 * A model of a GPU, containers and programs in virtual time. The limiter (submitted_work.c,
 * lease.c) is the library's. tests/shim/compute/model.py runs the model and the real arbiter.
 *
 * Assumptions: the GPU's contexts run one at a time, in time slices, round robin. A context's work
 * runs in the order of submission. A context has at most 1,024 pending launches. An event is done
 * when the work before it is done. A program has one thread, which launches as fast as it can or
 * waits after each launch. The kernel wakes a sleeping thread up to `wake_ns` late.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compute/submitted_work.h"

#pragma GCC visibility push(default)
#include "compute_model.h"
#pragma GCC visibility pop

enum {
	MOST_PROGRAMS = 16,
	MOST_CONTAINERS = 8,
	PENDING_MOST = 1024,
	RING = 4096,
};

#define NEVER	    UINT64_MAX
#define POLL_MAX_NS UINT64_C(100000) /* the longest time between two queries of events */

struct program {
	int container;
	uint64_t kernel_ns[4];
	uint32_t kernel_count, next_kernel;
	bool waits_each;  /* waits for the GPU after each launch */
	uint64_t wake_ns; /* when the thread runs next, or NEVER while it waits for the GPU */
	bool throttled;	  /* a launch waits for a window */
	struct vgpu_submitted_work work;
	uint64_t item_ns[RING];
	uint64_t submitted, finished; /* items */
	uint64_t left_ns;	      /* remaining work of the oldest item */
	uint64_t done_ns;	      /* work done */
	uint64_t throttled_from_ns;
	uint64_t busy_ns; /* how much of work.busy_ns its container has counted */
};

struct container {
	struct vgpu_lease_record records[2];
	struct vgpu_lease lease;
	uint64_t launched_ns, busy_until_ns, busy_ns, counted_ns;
	bool stopped;	/* all its programs are killed */
	bool unchecked; /* its launches are not checked */
};

struct model {
	struct model_options options;
	uint64_t now_ns, slice_end_ns, seed;
	int programs, current;
	struct program program[MOST_PROGRAMS];
	struct container container[MOST_CONTAINERS];
	uint64_t idle_ns;
};

struct model *model_new(const struct model_options *options, uint64_t now_ns)
{
	struct model *model = calloc(1, sizeof(*model));

	model->options = *options;
	model->now_ns = now_ns;
	model->current = -1;
	model->seed = 1;
	return model;
}

void model_free(struct model *model)
{
	free(model);
}

int model_add(struct model *model, int container, const uint64_t *kernel_ns, uint32_t count,
	      bool waits_each)
{
	struct program *program = &model->program[model->programs];

	*program = (struct program){.container = container,
				    .kernel_count = count,
				    .waits_each = waits_each,
				    .wake_ns = model->now_ns + (uint64_t)model->programs * 7001};
	memcpy(program->kernel_ns, kernel_ns, count * sizeof(*kernel_ns));
	return model->programs++;
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
	if (!vgpu_lease_read(of->records, &of->lease))
		return;
	for (int i = 0; i < model->programs; i++) {
		struct program *program = &model->program[i];
		uint64_t at_ns = model->now_ns + jitter(model, model->options.wake_ns);

		if (program->container == container && program->throttled && !of->stopped &&
		    program->wake_ns > at_ns)
			program->wake_ns = at_ns;
	}
}

void model_sample(const struct model *model, int container, uint64_t out[3])
{
	out[0] = model->container[container].launched_ns;
	out[1] = model->container[container].busy_until_ns;
	out[2] = model->container[container].busy_ns;
}

void model_kill(struct model *model, int container)
{
	model->container[container].stopped = true;
	for (int i = 0; i < model->programs; i++)
		if (model->program[i].container == container) {
			model->program[i].wake_ns = NEVER;
			model->program[i].finished = model->program[i].submitted;
			model->program[i].left_ns = 0;
			if (model->current == i)
				model->current = -1;
		}
}

void model_check_launches(struct model *model, int container, bool checked)
{
	model->container[container].unchecked = !checked;
}

void model_read(const struct model *model, int program, uint64_t out[2])
{
	out[0] = model->program[program].done_ns;
	out[1] = model->idle_ns;
}

static bool has_work(const struct program *program)
{
	return program->finished < program->submitted;
}

/* Choose the next context with work, or -1 if none has work. */
static void choose(struct model *model)
{
	for (int i = 1; i <= model->programs; i++) {
		int next = (model->current + i + model->programs) % model->programs;

		if (!has_work(&model->program[next]))
			continue;
		model->current = next;
		model->slice_end_ns = model->now_ns + model->options.slice_ns;
		return;
	}
	model->current = -1;
}

static uint64_t gpu_event_ns(const struct model *model)
{
	const struct program *program;
	uint64_t end_ns;

	if (model->current < 0)
		return NEVER;
	program = &model->program[model->current];
	end_ns = model->now_ns + program->left_ns;
	return end_ns < model->slice_end_ns ? end_ns : model->slice_end_ns;
}

/* Let the GPU work until `at_ns`, which is no later than its next event. */
static void advance(struct model *model, uint64_t at_ns)
{
	struct program *program;

	if (model->current < 0) {
		model->idle_ns += at_ns - model->now_ns;
		model->now_ns = at_ns;
		return;
	}
	program = &model->program[model->current];
	program->left_ns -= at_ns - model->now_ns;
	program->done_ns += at_ns - model->now_ns;
	model->now_ns = at_ns;
	if (!program->left_ns) {
		program->finished++;
		if (has_work(program))
			program->left_ns = program->item_ns[program->finished % RING];
		if (program->wake_ns == NEVER && !model->container[program->container].stopped &&
		    (!program->waits_each || !has_work(program)))
			program->wake_ns = at_ns + jitter(model, model->options.wake_ns / 4);
	}
	if (!has_work(program) || at_ns >= model->slice_end_ns)
		choose(model);
}

static void poll_markers(struct model *model, struct program *program, bool exactly)
{
	const struct vgpu_marker *oldest;

	while ((oldest = vgpu_work_oldest(&program->work))) {
		if (oldest->event > program->finished) {
			vgpu_work_polled(&program->work, model->now_ns);
			break;
		}
		vgpu_work_finished(&program->work, model->now_ns, exactly);
	}
}

/* Count work in the container, as launch.c does. */
static void count_work(struct container *container, struct program *program)
{
	uint64_t work_ns = program->work.busy_ns - program->busy_ns;
	uint64_t from_ns = container->counted_ns, end_ns = program->work.finished_ns;

	program->busy_ns = program->work.busy_ns;
	if (end_ns <= from_ns)
		return;
	container->busy_ns += work_ns < end_ns - from_ns ? work_ns : end_ns - from_ns;
	container->counted_ns = end_ns;
}

static void publish(struct model *model, int container)
{
	uint64_t busy_ns = 0;

	for (int i = 0; i < model->programs; i++)
		if (model->program[i].container == container) {
			uint64_t free_ns =
			    vgpu_work_free_ns(&model->program[i].work, model->now_ns);

			busy_ns = free_ns > busy_ns ? free_ns : busy_ns;
			count_work(&model->container[container], &model->program[i]);
		}
	model->container[container].busy_until_ns = busy_ns;
}

static bool is_checked(const struct model *model, const struct program *program)
{
	return model->options.limited && !model->container[program->container].unchecked;
}

static bool gate_admits(struct model *model, struct program *program, uint8_t kind,
			uint64_t *again_ns)
{
	struct container *container = &model->container[program->container];
	struct vgpu_turn turn = vgpu_lease_turn(&container->lease, model->now_ns);
	struct vgpu_waiting_launch waiting = {kind, program->throttled ? program->throttled_from_ns
								       : model->now_ns};
	bool admits;
	int slot;

	if (!is_checked(model, program))
		return true;
	container->launched_ns = model->now_ns;
	if (model->now_ns >= program->work.polled_ns + POLL_MAX_NS || program->throttled)
		poll_markers(model, program, false);
	admits = vgpu_work_admits(&program->work, &turn, model->now_ns, &waiting, again_ns);
	slot = admits ? VGPU_NO_MARKER : vgpu_work_paused(&program->work, &turn, model->now_ns);
	if (slot >= 0)
		vgpu_work_marked(&program->work, slot, program->submitted);
	publish(model, program->container);
	return admits;
}

static void submit(struct model *model, struct program *program, uint8_t kind)
{
	uint64_t cost_ns = program->kernel_ns[program->next_kernel];
	int slot = VGPU_NO_MARKER;

	program->next_kernel = (program->next_kernel + 1) % program->kernel_count;
	if (is_checked(model, program))
		slot = vgpu_work_submitted(&program->work, model->now_ns, kind, 1);
	program->item_ns[program->submitted % RING] = cost_ns;
	if (!has_work(program))
		program->left_ns = cost_ns;
	program->submitted++;
	if (slot >= 0)
		vgpu_work_marked(&program->work, slot, program->submitted);
	if (model->current < 0)
		choose(model);
}

/* Run the program's thread: it launches, or sleeps. */
static void step(struct model *model, struct program *program)
{
	uint8_t kind = vgpu_work_kind(64 * (program->next_kernel + 1), 0);
	uint64_t again_ns = NEVER;

	if (program->waits_each && !has_work(program) && program->submitted) {
		poll_markers(model, program, true);
		vgpu_work_synchronized(&program->work, model->now_ns, 1);
		publish(model, program->container);
	}
	if ((program->waits_each && has_work(program)) ||
	    program->submitted - program->finished >= PENDING_MOST) {
		program->wake_ns = NEVER;
		return;
	}
	if (!gate_admits(model, program, kind, &again_ns)) {
		if (!program->throttled)
			program->throttled_from_ns = model->now_ns;
		program->throttled = true;
		if (again_ns > model->now_ns + UINT64_C(50000000))
			again_ns = model->now_ns + UINT64_C(50000000);
		if (again_ns <= model->now_ns)
			again_ns = model->now_ns + 1000;
		program->wake_ns = again_ns + jitter(model, model->options.wake_ns);
		return;
	}
	program->throttled = false;
	submit(model, program, kind);
	publish(model, program->container);
	program->wake_ns = program->waits_each ? NEVER : model->now_ns + model->options.launch_ns;
}

void model_run(struct model *model, uint64_t until_ns)
{
	while (model->now_ns < until_ns) {
		uint64_t next_ns = gpu_event_ns(model);

		for (int i = 0; i < model->programs; i++)
			if (model->program[i].wake_ns < next_ns)
				next_ns = model->program[i].wake_ns;
		if (next_ns > until_ns)
			next_ns = until_ns;
		if (next_ns > model->now_ns || gpu_event_ns(model) <= model->now_ns)
			advance(model, next_ns > model->now_ns ? next_ns : model->now_ns);
		for (int i = 0; i < model->programs; i++)
			if (model->program[i].wake_ns <= model->now_ns)
				step(model, &model->program[i]);
	}
}
