/*
 * Tests of markers, of the current context that is known without a driver call, and of captures:
 * markers.c, current.c, generations.c, capture_mode.c and cuda_current.c with a driver of few
 * functions. Exits 0 if all tests pass.
 *
 *	vgpu-markers-test current | green | modes | destroyed
 */
#include <stdbool.h>
#include <unistd.h>

#include "charge/generations.h"
#include "charge/place.h"
#include "compute/current.h"
#include "compute/markers.h"
#include "loader/hooks.h"
#include "test.h"

enum { INVALID_HANDLE = 400, EVENTS = 64, AWAIT_US = 20000 };

/* A stream's handle is its context's, and an event is a pointer to its context. */
#define STREAM(context) ((CUstream)(context))

static char handles[3];
static const CUcontext primary = (CUcontext)&handles[0], green = (CUcontext)&handles[1],
		       other = (CUcontext)&handles[2];
static CUcontext current;
static CUcontext driver_events[EVENTS];
static int created, place_calls, exchanges;
static CUresult answer; /* of the calls that begin or end a capture, or destroy its stream */
static void (*during_query)(void);

void *vgpu_real[VGPU_FUNCTION_COUNT];

void *vgpu_real_find(enum vgpu_function function)
{
	(void)function;
	return NULL;
}

/* In place of place.c: the first use of a context begins its generation. */
CUresult vgpu_place_current(struct vgpu_place *place)
{
	uint32_t replaced;

	place_calls++;
	place->gpu = 0;
	(void)vgpu_generation_begin(current, 0, 0, place, &replaced);
	return CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned int flags)
{
	(void)flags;
	MUST(created < EVENTS);
	driver_events[created] = current;
	*event = (CUevent)&driver_events[created++];
	return CUDA_SUCCESS;
}

static CUresult record_event(CUevent event, CUstream stream)
{
	return *(CUcontext *)event == (CUcontext)stream ? CUDA_SUCCESS : INVALID_HANDLE;
}

static CUresult query_event(CUevent event)
{
	void (*call)(void) = during_query;

	(void)event;
	during_query = NULL;
	if (call)
		call();
	return CUDA_SUCCESS;
}

static CUresult stream_context(CUstream stream, CUcontext *context)
{
	*context = (CUcontext)stream;
	return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
	current = context;
	return CUDA_SUCCESS;
}

static CUresult pop_context(CUcontext *context)
{
	*context = current;
	current = primary;
	return CUDA_SUCCESS;
}

static CUresult exchange_mode(int *mode)
{
	(void)mode;
	exchanges++;
	return CUDA_SUCCESS;
}

static CUresult answered(void)
{
	return answer;
}

static void load_driver(void)
{
	vgpu_real[VGPU_ID_cuEventCreate] = (void *)create_event;
	vgpu_real[VGPU_ID_cuEventRecord] = (void *)record_event;
	vgpu_real[VGPU_ID_cuEventQuery] = (void *)query_event;
	vgpu_real[VGPU_ID_cuStreamGetCtx] = (void *)stream_context;
	vgpu_real[VGPU_ID_cuCtxPushCurrent_v2] = (void *)push_context;
	vgpu_real[VGPU_ID_cuCtxPopCurrent_v2] = (void *)pop_context;
	vgpu_real[VGPU_ID_cuThreadExchangeStreamCaptureMode] = (void *)exchange_mode;
	vgpu_real[VGPU_ID_cuStreamBeginCapture_v2] = (void *)answered;
	vgpu_real[VGPU_ID_cuStreamEndCapture] = (void *)answered;
	vgpu_real[VGPU_ID_cuStreamDestroy_v2] = (void *)answered;
	current = primary;
}

/* Record a marker in the context's stream, and query it. False: the marker is lost. */
static bool recorded_in(CUcontext of_stream)
{
	uint64_t took_ns;
	vgpu_event event = vgpu_event_end(vgpu_event_begin(STREAM(of_stream)), STREAM(of_stream));

	if (event == VGPU_EVENT_LOST)
		return false;
	MUST(vgpu_event_is_reached(event, &took_ns));
	vgpu_event_release(event);
	return true;
}

/* The current context is found once, until it changes or another thread ends it. */
static void test_current(void)
{
	struct vgpu_place place;

	MUST(recorded_in(primary) && recorded_in(primary) && place_calls == 1);
	vgpu_current_changed();
	MUST(recorded_in(primary) && place_calls == 2 && created == 2);
	MUST(vgpu_generation_known(primary, &place));
	vgpu_generation_ended(place.context);
	MUST(recorded_in(primary) && recorded_in(primary) && place_calls == 3 && created == 4);
	MUST(!vgpu_generation_is_current(place.context));
}

/* A green context has events of its own, although it is a further handle of the primary context.
 * Another context's stream gets no event. */
static void test_green(void)
{
	struct vgpu_place place;
	uint32_t replaced;

	MUST(recorded_in(primary) && vgpu_generation_known(primary, &place));
	vgpu_generation_join(green, place);
	for (int i = 0; i < 4; i++)
		MUST(recorded_in(green) && recorded_in(primary) && current == primary);
	MUST(vgpu_generation_begin(other, 0, 0, &place, &replaced));
	MUST(!recorded_in(other) && current == primary);
	MUST(recorded_in(primary));
}

static bool has_begun;

static CUresult begin_in(CUstream stream)
{
	return on_cuStreamBeginCapture_v2(VGPU_ID_cuStreamBeginCapture_v2, stream, 0);
}

static void *begin(void *unused)
{
	MUST(!begin_in(STREAM(primary)));
	__atomic_store_n(&has_begun, true, __ATOMIC_RELEASE);
	return unused;
}

/* The driver would invalidate a capture that begins during the query. So it begins afterwards. */
static void begin_meanwhile(void)
{
	static pthread_t thread;

	MUST(!pthread_create(&thread, NULL, begin, NULL));
	usleep(AWAIT_US);
	MUST(!__atomic_load_n(&has_begun, __ATOMIC_ACQUIRE));
}

/* The library changes the capture mode for its own calls once a capture has begun. */
static void test_modes(void)
{
	MUST(recorded_in(primary) && exchanges == 0);
	during_query = begin_meanwhile;
	MUST(recorded_in(primary) && exchanges == 0);
	while (!__atomic_load_n(&has_begun, __ATOMIC_ACQUIRE))
		usleep(1);
	MUST(recorded_in(primary) && exchanges == 6);
}

/* A capture ends with the stream in which it began. */
static void test_destroyed(void)
{
	const CUstream first = STREAM(primary), second = STREAM(green), joined = STREAM(other);

	MUST(!begin_in(first) && !begin_in(second));
	MUST(!cuStreamDestroy_v2(joined) && vgpu_open_captures == 2);
	answer = INVALID_HANDLE;
	MUST(begin_in(joined) && vgpu_open_captures == 2);
	MUST(cuStreamDestroy_v2(first) && vgpu_open_captures == 2);
	answer = CUDA_SUCCESS;
	MUST(!cuStreamDestroy_v2(first) && vgpu_open_captures == 1);
	MUST(!on_cuStreamEndCapture(VGPU_ID_cuStreamEndCapture, second, NULL) &&
	     vgpu_open_captures == 0);
	MUST(!begin_in(joined) && !cuStreamDestroy_v2(second));
	MUST(vgpu_open_captures == 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
	    {"current", test_current},
	    {"green", test_green},
	    {"modes", test_modes},
	    {"destroyed", test_destroyed},
	    {0},
	};

	load_driver();
	return run_test(tests, argc, argv);
}
