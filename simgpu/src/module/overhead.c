/*
 * A context's memory beyond what programs allocate: loaded code, and the space for stacks, printf
 * and the device's malloc that exceeds what the context includes.
 *
 * Before CUDA 12, launches by the device need memory, too. Each level of synchronisation needs the
 * state of all threads that the GPU holds, and each pending launch a piece of memory.
 *
 * There is local memory for as many threads as the GPU holds at once. Its size per thread is the
 * largest that a limit or a launched function has requested.
 */
#include <string.h>

#include "module/module.h"

#define THREADS_PER_MULTIPROCESSOR 2048
#define LEVEL_BYTES_PER_THREAD	   1024
#define WAITING_LAUNCH_BYTES	   8192

static const uint64_t default_limits[SIM_CONTEXT_LIMITS] = {
    [SIM_LIMIT_STACK] = 1024, [SIM_LIMIT_PRINTF] = 1 << 20, [SIM_LIMIT_HEAP] = 8 << 20,
    [SIM_LIMIT_DEPTH] = 2,    [SIM_LIMIT_LAUNCHES] = 2048,  [5] = 128,
};

static CUresult hold(struct context *context, uint64_t bytes, struct extra *extra)
{
	struct sim_alloc request = {.context = context->id, .bytes = bytes};
	struct sim_id id = {0};
	CUresult result = CUDA_SUCCESS;

	if (bytes)
		result = driver_result(sim_call(context->device->link, SIM_MEMORY_ALLOC, &request,
						sizeof(request), &id, sizeof(id), NULL));
	if (result == CUDA_SUCCESS)
		*extra = (struct extra){id.id, bytes};
	return result;
}

static void let_go(struct context *context, struct extra *extra)
{
	struct sim_id id = {.id = extra->id};

	/* The memory of an ended context was freed with it. */
	if (extra->id && context->alive)
		sim_call(context->device->link, SIM_MEMORY_FREE, &id, sizeof(id), NULL, 0, NULL);
	*extra = (struct extra){0};
}

/* Frees the old memory, then allocates the new. If that fails, allocates the old size again. */
static CUresult resize(struct context *context, struct extra *extra, uint64_t bytes)
{
	uint64_t before_bytes = extra->bytes;
	CUresult result;

	if (bytes == before_bytes)
		return CUDA_SUCCESS;
	let_go(context, extra);
	result = hold(context, bytes, extra);
	if (result != CUDA_SUCCESS)
		hold(context, before_bytes, extra);
	return result;
}

static uint64_t threads_of(const struct context *context)
{
	return (uint64_t)context->device->gpu->multiprocessors * THREADS_PER_MULTIPROCESSOR;
}

static CUresult resize_local(struct context *context, uint64_t stack_bytes, uint64_t launched_bytes)
{
	uint64_t threads = threads_of(context);
	uint64_t most_bytes = stack_bytes > launched_bytes ? stack_bytes : launched_bytes;

	if (most_bytes <= default_limits[SIM_LIMIT_STACK])
		most_bytes = 0; /* included in the context's memory */
	if (most_bytes > UINT64_MAX / threads)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return resize(context, &context->beyond[SIM_LIMIT_STACK], most_bytes * threads);
}

void overhead_begin(struct context *context)
{
	memcpy(context->limits, default_limits, sizeof(context->limits));
	context->launched_local_bytes = 0;
	memset(context->beyond, 0, sizeof(context->beyond));
}

/* Returns the bytes that each unit of a limit above its default costs. */
static uint64_t unit_bytes(const struct context *context, int limit)
{
	if (limit == SIM_LIMIT_DEPTH)
		return threads_of(context) * LEVEL_BYTES_PER_THREAD;
	return limit == SIM_LIMIT_LAUNCHES ? WAITING_LAUNCH_BYTES : 1;
}

CUresult overhead_set_limit(struct context *context, int limit, uint64_t value)
{
	uint64_t beyond = value > default_limits[limit] ? value - default_limits[limit] : 0, bytes;

	if (limit == SIM_LIMIT_STACK) {
		TRY(resize_local(context, value, context->launched_local_bytes));
	} else if (limit <= SIM_LIMIT_LAUNCHES) {
		if (__builtin_mul_overflow(beyond, unit_bytes(context, limit), &bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
		TRY(resize(context, &context->beyond[limit], bytes));
	}
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

CUresult module_load_code(struct module *module)
{
	uint64_t bytes = module->code->bytes;
	CUresult result;

	if (module->loaded)
		return CUDA_SUCCESS;
	if (bytes == CODE_UNSTATED)
		bytes = module->context->device->gpu->module_bytes;
	result = hold(module->context, bytes, &module->memory);
	module->loaded = result == CUDA_SUCCESS;
	return result;
}

void module_unload_code(struct module *module)
{
	let_go(module->context, &module->memory);
	module->loaded = false;
}

CUresult function_load(struct function *function, struct context *context)
{
	uint64_t local_bytes = function->entry->local_bytes;
	struct module *module = function->module;

	/* A function has a module. A kernel uses its library's module in this context. */
	if (!module)
		module = library_module(function->library, context);
	TRY(module_load_code(module));
	if (local_bytes <= context->launched_local_bytes)
		return CUDA_SUCCESS;
	TRY(resize_local(context, context->limits[SIM_LIMIT_STACK], local_bytes));
	context->launched_local_bytes = local_bytes;
	return CUDA_SUCCESS;
}
