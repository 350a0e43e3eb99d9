/*
 * Contexts, and each thread's stack of contexts.
 *
 * A stack holds handles. So the use of a context that another thread has destroyed is detected and
 * returns CUDA_ERROR_CONTEXT_IS_DESTROYED. Without a current context, it is INVALID_CONTEXT.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "client/channel.h"
#include "memory/array.h"
#include "memory/leaving.h"
#include "memory/pool.h"
#include "memory/suballoc.h"

#define STACK_CONTEXTS 64

static __thread struct {
	CUcontext context[STACK_CONTEXTS];
	int depth;
} stack;

CUresult context_get(CUcontext handle, struct context **out)
{
	struct green_view *green = object_get(handle, OBJECT_GREEN_VIEW);
	struct context *context = green ? green->primary : object_get(handle, OBJECT_CONTEXT);

	if (!context)
		return object_was(handle, OBJECT_CONTEXT) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
							  : CUDA_ERROR_INVALID_CONTEXT;
	*out = context;
	return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(struct context **out)
{
	return context_get(stack.depth ? stack.context[stack.depth - 1] : NULL, out);
}

uint64_t green_current(void)
{
	struct object *view =
	    stack.depth ? object_get(stack.context[stack.depth - 1], OBJECT_GREEN_VIEW) : NULL;

	return view ? view->serial : 0;
}

CUresult context_enter(CUcontext handle, struct context **context)
{
	CUresult result;

	TRY(driver_enter());
	result = handle ? context_get(handle, context) : context_current(context);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

bool device_addresses(struct device *device)
{
	/* Alignment wastes addresses, so up to 8 times the GPU's memory is reserved. */
	for (uint64_t share = 8; share && !device->arena.base; share /= 2)
		arena_reserve(&device->arena, device->gpu->memory_bytes * share, false);
	return device->arena.base;
}

/* Takes host memory in the program's process, as a real context does. Every page is in use. */
static bool take_host_memory(const struct device *device, struct context *context)
{
	uint64_t bytes = sim_link_shared(device->link)->board.context_host_bytes;

	context->host = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)
			      : NULL;
	if (context->host != MAP_FAILED)
		return true;
	context->host = NULL;
	return false;
}

static void give_host_memory(const struct device *device, struct context *context)
{
	if (context->host)
		munmap(context->host, sim_link_shared(device->link)->board.context_host_bytes);
	context->host = NULL;
}

CUresult context_open(struct device *device, struct context *context)
{
	struct sim_context made;
	CUresult result;

	if (!device_addresses(device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!sim_link_shared(device->link))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!take_host_memory(device, context))
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Advancing the engine drops the items of ended contexts, which frees their channels. */
	sim_look(device->link);
	result = driver_result(
	    sim_call(device->link, SIM_CONTEXT_CREATE, NULL, 0, &made, sizeof(made), NULL));
	if (result != CUDA_SUCCESS) {
		give_host_memory(device, context);
		return result;
	}
	context->device = device;
	context->id = made.id;
	context->channel = made.channel;
	context->alive = true;
	context->legacy = (struct stream){.context = context};
	context->blocking_done = context->all_done = (struct mark){0};
	__atomic_store_n(&device->used, true, __ATOMIC_RELEASE);
	overhead_begin(context);
	return CUDA_SUCCESS;
}

CUresult context_close(struct context *context)
{
	struct sim_id id = {.id = context->id};

	context->alive = false;
	events_forget(context);
	streams_forget(context);
	modules_forget(context);
	externals_forget(context);
	arrays_forget(context);
	leaving_forget(context);
	suballoc_forget(context);
	arena_forget(&context->device->arena, context->object.serial);
	arena_forget(&context->device->low, context->object.serial);
	give_host_memory(context->device, context);
	return driver_result(
	    sim_call(context->device->link, SIM_CONTEXT_DESTROY, &id, sizeof(id), NULL, 0, NULL));
}

CUresult context_drain(struct context *context)
{
	struct device *device = context->device;
	struct mark done = context->all_done;

	TRY_LOCKED(capture_allows());
	driver_unlock();
	mark_wait(&done);
	return pools_synchronised(device);
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice ordinal, unsigned int version)
{
	struct context *context;
	struct device *device;
	CUresult result;

	TRY(driver_enter());
	if (!out || !context_flags_are_good(flags))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	TRY_LOCKED(device_get(ordinal, &device));
	if (stack.depth == STACK_CONTEXTS)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	context = object_new(OBJECT_CONTEXT, sizeof(*context));
	result = context_open(device, context);
	if (result != CUDA_SUCCESS) {
		object_free(context);
		return driver_leave(result);
	}
	context->api_version = version;
	*out = object_handle(context);
	stack.context[stack.depth++] = *out;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	return create(out, flags, ordinal, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	return create(out, flags, ordinal, CONTEXT_API_VERSION);
}

struct parameters {
	const void *affinity;
	int count;
	const void *cig;
};

CUresult cuCtxCreate_v4(CUcontext *out, void *given, unsigned int flags, CUdevice ordinal)
{
	const struct parameters *parameters = given;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (parameters && (parameters->affinity || parameters->count))
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (parameters && parameters->cig)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(out, flags, ordinal, CONTEXT_API_VERSION);
}

CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags,
			CUdevice ordinal)
{
	return cuCtxCreate_v4(out, &(struct parameters){affinity, count, NULL}, flags, ordinal);
}

/* Finds a context that the program made. Fails for a primary context. */
static CUresult enter_own(CUcontext handle, struct context **context)
{
	TRY(driver_enter());
	TRY_LOCKED(context_get(handle, context));
	return (*context)->primary ? driver_leave(CUDA_ERROR_INVALID_CONTEXT) : CUDA_SUCCESS;
}

static CUresult end(CUcontext handle, struct context *context)
{
	CUresult result;

	if (stack.depth && stack.context[stack.depth - 1] == handle)
		stack.depth--;
	result = context_close(context);
	object_free(context);
	return result;
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	struct context *context;

	TRY(enter_own(handle, &context));
	return driver_leave(end(handle, context));
}

CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	struct context *context;

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = stack.depth ? stack.context[stack.depth - 1] : NULL;
	TRY(enter_own(*out, &context));
	context->attached++;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext handle)
{
	struct context *context;

	TRY(enter_own(handle, &context));
	if (!context->attached)
		return driver_leave(end(handle, context));
	context->attached--;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	struct context *context;

	TRY(driver_enter());
	TRY_LOCKED(context_get(handle, &context));
	if (stack.depth == STACK_CONTEXTS)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	stack.context[stack.depth++] = handle;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	TRY(driver_enter());
	if (!stack.depth)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	stack.depth--;
	if (out)
		*out = stack.context[stack.depth];
	return driver_leave(CUDA_SUCCESS);
}

/* A primary context can be made current before it is retained, and used after. */
CUresult cuCtxSetCurrent(CUcontext handle)
{
	const struct context *primary;
	struct context *context;

	TRY(driver_enter());
	if (!handle) {
		stack.depth -= stack.depth > 0;
		return driver_leave(CUDA_SUCCESS);
	}
	primary = object_get(handle, OBJECT_CONTEXT);
	if (!primary || !primary->primary)
		TRY_LOCKED(context_get(handle, &context));
	stack.depth += stack.depth == 0;
	stack.context[stack.depth - 1] = handle;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	TRY(driver_enter());
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = stack.depth ? stack.context[stack.depth - 1] : NULL;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle)
{
	struct context *context;

	TRY(context_enter(handle, &context));
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = context->device->ordinal;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *out)
{
	return cuCtxGetDevice_v2(out, NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	struct context *context;
	CUresult result = context_enter(handle, &context);

	return result == CUDA_SUCCESS ? context_drain(context) : result;
}

CUresult cuCtxSynchronize(void)
{
	return cuCtxSynchronize_v2(NULL);
}
