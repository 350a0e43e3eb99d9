/*
 * Events: the instant at which a stream reaches them.
 *
 * It is known when the event is recorded, because the daemon has returned when the work before it
 * will be done.
 */
#include "graph/transfer.h"
#include "memory/pool.h"

struct event {
	struct object object;
	struct context *context;
	unsigned int flags;
	uint64_t reached_ns;  /* when it was recorded last, or will be reached; 0: never */
	CUstream captured_on; /* recorded there in a capture, which may be over */
	struct capture *capture;
};

/* True if the capture that it was recorded in continues; a stream's handle is never used twice. */
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

static CUresult enter(CUevent handle, struct event **event)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*event = object_get(handle, OBJECT_EVENT);
	return *event ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	struct context *context;
	struct event *event;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(&context);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (!out || flags & ~(unsigned int)CU_EVENT_FLAGS_MASK)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	event = object_new(OBJECT_EVENT, sizeof(*event));
	if (!event)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	event->context = context;
	event->flags = flags;
	*out = object_handle(event);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	struct event *event;
	CUresult result = enter(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	object_free(event);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
	struct stream *stream;
	struct event *event;
	uint64_t ready_ns, now;
	CUresult result = enter(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_get(stream_handle, &stream);
	if (result == CUDA_SUCCESS && stream->context != event->context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	event->capture = stream->capture;
	event->captured_on = stream_handle;
	if (stream->capture)
		return driver_leave(CUDA_SUCCESS);
	ready_ns = stream_ready_ns(stream);
	now = now_ns();
	event->reached_ns = ready_ns > now ? ready_ns : now;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags)
{
	/* The one flag, for external events, has a meaning in captures alone. */
	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return cuEventRecord(handle, stream);
}

CUresult cuEventQuery(CUevent handle)
{
	struct event *event;
	uint64_t due_ns;
	CUresult result = enter(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	if (is_captured(event))
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	due_ns = event->reached_ns;
	return driver_leave(due_ns > now_ns() || host_calls_due(due_ns) ? CUDA_ERROR_NOT_READY
									: CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct event *event;
	struct device *device;
	uint64_t due_ns;
	CUresult result = enter(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	if (is_captured(event))
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	due_ns = event->reached_ns;
	device = event->context->device;
	driver_unlock();
	wait_until_ns(due_ns);
	return pools_synchronised(device);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
	struct event *start, *end;
	uint64_t now = now_ns();
	CUresult result = enter(from, &start);

	if (result != CUDA_SUCCESS)
		return result;
	end = object_get(to, OBJECT_EVENT);
	if (!milliseconds)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!end || !start->reached_ns || !end->reached_ns || start->context != end->context ||
	    (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (start->reached_ns > now || end->reached_ns > now)
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
	CUresult result = enter(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	result = flags ? CUDA_ERROR_INVALID_VALUE : stream_get(stream_handle, &stream);
	if (result == CUDA_SUCCESS && is_captured(event)) {
		if (stream->capture && stream->capture != event->capture)
			return driver_leave(CUDA_ERROR_STREAM_CAPTURE_MERGE);
		stream->capture = event->capture;
	} else if (result == CUDA_SUCCESS && stream->capture) {
		result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	} else if (result == CUDA_SUCCESS) {
		stream_submit(stream, event->reached_ns);
	}
	return driver_leave(result);
}
