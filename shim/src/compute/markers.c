#include "compute/markers.h"

#include "charge/generations.h"
#include "compute/current.h"
#include "compute/submitted_work.h"
#include "loader/capture_mode.h"
#include "loader/hooks.h"
#include "os/lock.h"

enum { EVENTS = 256, DEFAULT = 0 };

struct event {
	CUevent from, to; /* NULL: no events were created for this entry yet */
	uint32_t generation;
	bool used;
};

static struct vgpu_lock lock;
static struct event events[EVENTS];

/* Take the entry of a free event of the context's generation, or else an entry for a new event.
 * NULL: all are in use. */
static struct event *take(uint32_t generation)
{
	struct event *found = NULL;

	if (!vgpu_lock(&lock))
		return NULL;
	for (int i = 0; i < EVENTS; i++) {
		struct event *event = &events[i];

		if (event->used)
			continue;
		if (event->to && event->generation == generation) {
			found = event;
			break;
		}
		if (!found || (found->to && !event->to))
			found = event;
	}
	if (found)
		found->used = true;
	vgpu_unlock(&lock);
	return found;
}

static void give(struct event *event)
{
	if (!vgpu_lock(&lock))
		return;
	event->used = false;
	vgpu_unlock(&lock);
}

/* Make the entry hold new events of the current context. False: the driver created none. */
static bool create(struct event *event, uint32_t generation)
{
	if (event->from && vgpu_generation_is_current(event->generation)) {
		(void)real_cuEventDestroy_v2(event->from);
		if (event->to)
			(void)real_cuEventDestroy_v2(event->to);
	}
	event->from = event->to = NULL;
	event->generation = generation;
	return real_cuEventCreate(&event->from, DEFAULT) == CUDA_SUCCESS &&
	       real_cuEventCreate(&event->to, DEFAULT) == CUDA_SUCCESS;
}

/* Record the entry's first event, or a new one. */
static bool record(struct event *event, uint32_t generation, CUstream stream)
{
	return ((event->to && event->generation == generation) || create(event, generation)) &&
	       real_cuEventRecord(event->from, stream) == CUDA_SUCCESS;
}

/* Record a new event in a stream that refused the entry's. Green contexts and their primary context
 * are of one generation, but a driver may refuse the other's events in their streams. */
static bool record_new(struct event *event, uint32_t generation, CUstream stream)
{
	CUcontext context, popped;
	struct vgpu_place place;
	bool recorded;

	if (real_cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
	    !vgpu_generation_known(context, &place) || place.context != generation ||
	    real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	recorded =
	    create(event, generation) && real_cuEventRecord(event->from, stream) == CUDA_SUCCESS;
	(void)real_cuCtxPopCurrent_v2(&popped);
	return recorded;
}

vgpu_event vgpu_event_begin(CUstream stream)
{
	uint32_t generation = vgpu_current_generation();
	struct event *event = generation ? take(generation) : NULL;
	bool recorded;
	int mode;

	if (!event)
		return VGPU_EVENT_LOST;
	mode = vgpu_capture_mode_relax();
	recorded = record(event, generation, stream) || record_new(event, generation, stream);
	vgpu_capture_mode_restore(mode);
	if (recorded)
		return (vgpu_event)(event - events) + 1;
	give(event);
	return VGPU_EVENT_LOST;
}

vgpu_event vgpu_event_end(vgpu_event number, CUstream stream)
{
	CUresult result;
	int mode;

	if (number == VGPU_EVENT_LOST)
		return VGPU_EVENT_LOST;
	mode = vgpu_capture_mode_relax();
	result = real_cuEventRecord(events[number - 1].to, stream);
	vgpu_capture_mode_restore(mode);
	if (result == CUDA_SUCCESS)
		return number;
	give(&events[number - 1]);
	return VGPU_EVENT_LOST;
}

bool vgpu_event_is_reached(vgpu_event number, uint64_t *took_ns)
{
	const struct event *event = &events[number - 1];
	float took_ms = -1;
	CUresult result;
	int mode;

	*took_ns = VGPU_UNTIMED;
	if (!vgpu_generation_is_current(event->generation))
		return true;
	mode = vgpu_capture_mode_relax();
	result = real_cuEventQuery(event->to);
	if (result == CUDA_SUCCESS &&
	    real_cuEventElapsedTime(&took_ms, event->from, event->to) == CUDA_SUCCESS &&
	    took_ms >= 0)
		*took_ns = (uint64_t)((double)took_ms * 1e6);
	vgpu_capture_mode_restore(mode);
	return result != CUDA_ERROR_NOT_READY;
}

void vgpu_event_release(vgpu_event number)
{
	if (number && number != VGPU_EVENT_LOST)
		give(&events[number - 1]);
}
