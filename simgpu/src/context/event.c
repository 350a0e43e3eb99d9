/*
 * Events: how far the GPUs must come until an event is reached, and when it was reached.
 */
#include "base/driver.h"
#include "memory/pool.h"

struct event {
	struct object object;
	struct context *context;
	uint64_t green; /* serial of its green context; 0: none */
	unsigned int flags;
	bool recorded;
	struct mark mark;     /* what the latest record waits for */
	uint64_t reached_ns;  /* 0: not known to be reached */
	CUstream captured_on; /* the stream whose capture recorded the event */
	struct capture *capture;
};

/* Returns true while the event's capture continues. Streams' handles are never reused. */
static bool is_captured(const struct event *event)
{
	const struct stream *stream =
	    event->capture ? object_get(event->captured_on, OBJECT_STREAM) : NULL;

	return stream && stream->capture == event->capture;
}

void events_forget(struct context *context)
{
	uint32_t at = 0;
	struct event *event;

	while ((event = object_next(OBJECT_EVENT, &at)))
		if (event->context == context)
			object_free(event);
}

/* Returns whether the event is reached, and stores the instant. The caller holds the lock. */
static bool settle(struct event *event)
{
	if (!event->reached_ns && event->recorded && mark_is_reached(&event->mark)) {
		event->reached_ns = mark_reached_ns(&event->mark);
		event->mark.count = 0;
	}
	return event->reached_ns || !event->recorded;
}

void events_settle(const struct context *context)
{
	uint32_t at = 0;
	struct event *event;

	while ((event = object_next(OBJECT_EVENT, &at)))
		if (event->context == context)
			settle(event);
}

static CUresult enter(CUevent handle, struct event **event)
{
	TRY(driver_enter());
	*event = object_get(handle, OBJECT_EVENT);
	return *event ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	struct context *context;
	struct event *event;

	TRY(context_enter(NULL, &context));
	if (!out || flags & ~(unsigned int)CU_EVENT_FLAGS_MASK)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	event = object_new(OBJECT_EVENT, sizeof(*event));
	event->context = context;
	event->green = green_current();
	event->flags = flags;
	*out = object_handle(event);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	struct event *event;

	TRY(enter(handle, &event));
	object_free(event);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
	struct stream *stream;
	struct event *event;
	struct mark room;
	uint64_t now;

	TRY(enter(handle, &event));
	TRY_LOCKED(stream_get(stream_handle, &stream));
	if (stream->context != event->context || stream_green(stream) != event->green)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	event->capture = stream->capture;
	event->captured_on = stream_handle;
	if (stream->capture)
		return driver_leave(CUDA_SUCCESS);
	event->mark = stream_ready(stream);
	/* A GPU reaches an event of an idle stream in a time slice of the event's context. */
	if (!event->mark.count && !(event->flags & CU_EVENT_DISABLE_TIMING) &&
	    stream_occupy(stream, 0, &room) == CUDA_SUCCESS)
		event->mark = stream_ready(stream);
	now = now_ns();
	if (event->mark.not_before_ns < now)
		event->mark.not_before_ns = now;
	event->recorded = true;
	event->reached_ns = 0;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags)
{
	/* The only flag, for external events in a capture, is not simulated. */
	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return cuEventRecord(handle, stream);
}

CUresult cuEventQuery(CUevent handle)
{
	struct event *event;

	TRY(enter(handle, &event));
	if (is_captured(event))
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	TRY_LOCKED(capture_allows());
	return driver_leave(settle(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct event *event;
	struct device *device;
	struct mark mark;

	TRY(enter(handle, &event));
	if (is_captured(event))
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	TRY_LOCKED(capture_allows());
	mark = event->mark;
	device = event->context->device;
	driver_unlock();
	mark_wait(&mark);
	return pools_synchronised(device);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
	struct event *start, *end;

	TRY(enter(from, &start));
	end = object_get(to, OBJECT_EVENT);
	if (!milliseconds)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!end || !start->recorded || !end->recorded || start->context != end->context ||
	    (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!settle(start) || !settle(end))
		return driver_leave(CUDA_ERROR_NOT_READY);
	*milliseconds = (float)((double)(int64_t)(end->reached_ns - start->reached_ns) / 1e6);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	return cuEventElapsedTime_v2(milliseconds, from, to);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
	struct stream *stream;
	struct event *event;

	TRY(enter(handle, &event));
	TRY_LOCKED(flags ? CUDA_ERROR_INVALID_VALUE : stream_get(stream_handle, &stream));
	if (is_captured(event)) {
		if (stream->capture && stream->capture != event->capture)
			return driver_leave(CUDA_ERROR_STREAM_CAPTURE_MERGE);
		stream->capture = event->capture;
	} else if (stream->capture) {
		return driver_leave(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	} else {
		stream_raise(stream, &event->mark);
	}
	return driver_leave(CUDA_SUCCESS);
}
