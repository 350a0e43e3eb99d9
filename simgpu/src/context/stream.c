/*
 * Streams: how far the GPUs must come until submitted work is done.
 *
 * Streams run at the same time. A stream's work is in one queue of its context, and streams beyond
 * SIM_QUEUES share queues, as in a real driver. A stream is a mark that only moves forward. A copy
 * moves its data when it is submitted. As kernels compute nothing, programs cannot observe this. A
 * blocking stream and the legacy stream wait for each other.
 */
#include "client/channel.h"
#include "graph/graph.h"
#include "memory/pool.h"

static __thread bool zero_is_per_thread;
static __thread char this_thread; /* its address identifies the thread */

bool stream_per_thread(bool enable)
{
	bool before = zero_is_per_thread;

	zero_is_per_thread = enable;
	return before;
}

struct stream *stream_new(struct context *context, unsigned int flags, uint64_t green)
{
	struct stream *stream = object_new(OBJECT_STREAM, sizeof(*stream));

	stream->context = context;
	stream->flags = flags;
	stream->green = green;
	stream->queue = ++context->streams % SIM_QUEUES;
	return stream;
}

/* Finds or makes the thread's own stream. A later thread with the same address may inherit it. */
static struct stream *own_stream(struct context *context)
{
	uint64_t thread = (uint64_t)(uintptr_t)&this_thread;
	struct stream *stream;
	uint32_t at = 0;

	while ((stream = object_next(OBJECT_STREAM, &at)))
		if (stream->context == context && stream->owner_thread == thread)
			return stream;
	stream = stream_new(context, 0, 0);
	stream->owner_thread = thread;
	return stream;
}

CUresult stream_get(CUstream handle, struct stream **out)
{
	struct context *context;

	TRY(context_current(&context));
	if (!handle)
		handle = zero_is_per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	*out = handle == CU_STREAM_PER_THREAD ? own_stream(context)
	       : handle == CU_STREAM_LEGACY   ? &context->legacy
					      : object_get(handle, OBJECT_STREAM);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The legacy stream has no serial, so its context's serial is used. */
uint64_t stream_serial(const struct stream *stream)
{
	return stream->object.serial ? stream->object.serial : stream->context->object.serial;
}

uint64_t stream_green(const struct stream *stream)
{
	bool is_default = stream == &stream->context->legacy || stream->owner_thread;

	return is_default ? green_current() : stream->green;
}

struct mark stream_ready(const struct stream *stream)
{
	const struct context *context = stream->context;
	struct mark ready;

	ready.count = 0;
	ready.not_before_ns = 0;
	mark_add(&ready, stream == &context->legacy ? &context->blocking_done : &stream->done);
	if (stream != &context->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING))
		mark_add(&ready, &context->legacy.done);
	return ready;
}

void stream_raise(struct stream *stream, const struct mark *mark)
{
	mark_add(&stream->done, mark);
	mark_add(&stream->context->all_done, mark);
	if (!(stream->flags & CU_STREAM_NON_BLOCKING))
		mark_add(&stream->context->blocking_done, mark);
}

/* An item may wait for work of other contexts. It begins no earlier than the predicted end of that
 * work. */
CUresult stream_occupy(struct stream *stream, uint64_t duration_ns, struct mark *room)
{
	struct context *context = stream->context;
	struct sim_link *link = context->device->link;
	struct mark ready = stream_ready(stream);
	struct position item = {.device = (uint16_t)context->device->ordinal,
				.queue = (uint16_t)(context->channel * SIM_QUEUES + stream->queue)};
	uint64_t earliest_ns = mark_predict_ns(&ready, &item), after[SIM_QUEUES] = {0};

	mark_items(&ready, &item, after);
	switch (sim_submit(link, item.queue, duration_ns, earliest_ns, after, &item.number)) {
	case SIM_NO_CHANNEL:
		return driver_result(SIM_GPU_LOST);
	case SIM_QUEUE_FULL:
		item.number = sim_oldest_item(link, item.queue);
		*room = (struct mark){.count = 1, .at = {item}};
		return CUDA_ERROR_NOT_READY;
	default:
		mark_add_position(&ready, item);
		stream_raise(stream, &ready);
		if (item.number % (SIM_HISTORY / 4) == 0)
			events_settle(context);
		return CUDA_SUCCESS;
	}
}

void streams_forget(struct context *context)
{
	uint32_t at = 0;
	struct stream *stream;

	capture_forget(context);
	while ((stream = object_next(OBJECT_STREAM, &at)))
		if (stream->context == context)
			object_free(stream);
}

CUresult stream_enter(CUstream handle, struct stream **stream)
{
	CUresult result;

	TRY(driver_enter());
	result = stream_get(handle, stream);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	struct context *context;

	(void)priority;
	if (!out || flags & ~(unsigned int)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_enter(NULL, &context));
	*out = object_handle(stream_new(context, flags, green_current()));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	return cuStreamCreateWithPriority(out, flags, 0);
}

/* Returns at once. Submitted work continues, and a synchronisation of the context waits for it. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
	struct stream *stream;

	TRY(driver_enter());
	stream = object_get(handle, OBJECT_STREAM);
	if (!stream || stream->owner_thread)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	capture_end_on(stream);
	object_free(stream);
	return driver_leave(CUDA_SUCCESS);
}

CUresult stream_pending(CUstream handle, struct mark *pending, struct device **device)
{
	struct stream *stream;

	TRY(stream_enter(handle, &stream));
	TRY_LOCKED(capture_allows_on(stream));
	*pending = stream_ready(stream);
	*device = stream->context->device;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream handle)
{
	struct device *device;
	struct mark pending;

	TRY(stream_pending(handle, &pending, &device));
	return mark_is_reached(&pending) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	struct device *device;
	struct mark pending;

	TRY(stream_pending(handle, &pending, &device));
	mark_wait(&pending);
	return pools_synchronised(device);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *out)
{
	struct stream *stream;

	TRY(stream_enter(handle, &stream));
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(stream->context);
	return driver_leave(CUDA_SUCCESS);
}
