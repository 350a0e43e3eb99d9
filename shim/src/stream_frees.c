/* See stream_frees.h. The waiting lie together, in no order. */
#include "stream_frees.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device_memory.h"
#include "hooks.h"
#include "lives.h"
#include "lock.h"
#include "step.h"
#include "vgpu/region.h"
#include "wiped.h"

enum {
	DISABLE_TIMING = 2, /* CU_EVENT_DISABLE_TIMING */
	RELAXED = 2,	    /* CU_STREAM_CAPTURE_MODE_RELAXED */
	FIRST_REAL_STREAM = 3,
	MANY = 64,		  /* then each doubling is a reason to look */
	FIRST_PAUSE_NS = 1000000, /* doubled each time: 1 + 2 + ... + 256 ms */
	PAUSES = 9,
};

struct waiting {
	enum vgpu_kind kind;
	bool asleep; /* the event's context may be ending */
	uint64_t key;
	struct vgpu_charge charge;
	CUevent event;
	uint32_t event_context;
};

static struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;
	uint32_t count;
	struct waiting waiting[VGPU_STREAM_FREES];
} *shared;

uint32_t vgpu_stream_frees;

/* With its lock; NULL: not to be had. */
static struct table *enter(void)
{
	struct table *t = vgpu_wiped_pages((struct vgpu_wiped **)&shared, sizeof(struct table));

	return t && vgpu_lock(&t->lock) ? t : NULL;
}

static void remove_at(struct table *t, uint32_t at)
{
	t->waiting[at] = t->waiting[--t->count];
	__atomic_sub_fetch(&vgpu_stream_frees, 1, __ATOMIC_RELAXED);
}

/* What a capture of another thread's would be spoilt by, it does not see. */
static bool relax(int *mode)
{
	*mode = RELAXED;
	return real_cuThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS;
}

static void unrelax(bool relaxed, int mode)
{
	if (relaxed)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
}

/* The stream got there, and the driver has given back what it holds until it is synchronised with:
 * that takes no time any more. */
static bool is_over(CUevent event)
{
	return real_cuEventQuery(event) == CUDA_SUCCESS &&
	       real_cuEventSynchronize(event) == CUDA_SUCCESS;
}

static void refund(const struct waiting *waiting)
{
	VGPU_AT(STREAM_OVER);
	vgpu_release(waiting->kind, waiting->key, &waiting->charge, CUDA_SUCCESS);
}

static void keep(const struct waiting *waiting)
{
	vgpu_release(waiting->kind, waiting->key, &waiting->charge, CUDA_ERROR_NOT_READY);
}

/* With the lock. */
static bool settle(struct table *t)
{
	uint32_t before = t->count;
	int mode;
	bool relaxed = relax(&mode);

	for (uint32_t i = before; i-- > 0;) {
		struct waiting one = t->waiting[i];

		if (one.asleep || !is_over(one.event))
			continue;
		(void)real_cuEventDestroy_v2(one.event);
		remove_at(t, i);
		refund(&one);
	}
	unrelax(relaxed, mode);
	return t->count != before;
}

bool vgpu_settle_known_frees(void)
{
	struct table *t = enter();
	bool any;

	if (!t)
		return false;
	any = settle(t);
	vgpu_unlock(&t->lock);
	return any;
}

/* An event behind all that the stream was given, in the stream's context; NULL: none. */
static CUevent record(CUstream stream, uint32_t *context)
{
	struct vgpu_place place = {.context = 0};
	CUcontext own, popped;
	CUevent event = NULL;
	bool pushed = (uintptr_t)stream >= FIRST_REAL_STREAM &&
		      real_cuStreamGetCtx(stream, &own) == CUDA_SUCCESS &&
		      real_cuCtxPushCurrent_v2(own) == CUDA_SUCCESS;

	if (vgpu_place_current(&place) == CUDA_SUCCESS && place.context &&
	    real_cuEventCreate(&event, DISABLE_TIMING) == CUDA_SUCCESS &&
	    real_cuEventRecord(event, stream) != CUDA_SUCCESS) {
		(void)real_cuEventDestroy_v2(event);
		event = NULL;
	}
	if (pushed)
		(void)real_cuCtxPopCurrent_v2(&popped);
	*context = place.context;
	return event;
}

static bool is_capturing(CUstream stream)
{
	int status = 0;

	return real_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status;
}

static bool add(const struct waiting *waiting)
{
	struct table *t = enter();
	bool added;

	if (!t)
		return false;
	if (t->count >= MANY && (t->count & (t->count - 1)) == 0)
		(void)settle(t);
	added = t->count < VGPU_STREAM_FREES;
	if (added) {
		t->waiting[t->count++] = *waiting;
		__atomic_add_fetch(&vgpu_stream_frees, 1, __ATOMIC_RELAXED);
	}
	vgpu_unlock(&t->lock);
	VGPU_AT(STREAM_WAITS);
	return added;
}

void vgpu_freed_in_stream(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
			  CUstream stream)
{
	struct waiting waiting = {.kind = kind, .key = key, .charge = *charge};
	int mode;
	bool relaxed, over;

	if (charge->card < 0)
		return;
	VGPU_AT(STREAM_FREED);
	relaxed = relax(&mode);
	if (!is_capturing(stream))
		waiting.event = record(stream, &waiting.event_context);
	over = waiting.event && is_over(waiting.event);
	if (over || !waiting.event || !add(&waiting)) {
		if (waiting.event)
			(void)real_cuEventDestroy_v2(waiting.event);
		if (over)
			refund(&waiting);
		else
			keep(&waiting);
	} else if (!vgpu_place_lives(waiting.event_context)) {
		/* Who ended it has looked already. */
		vgpu_frees_context_ended(waiting.event_context, true);
	}
	unrelax(relaxed, mode);
}

/* With the lock. */
static uint64_t waiting_bytes(const struct table *t, int card)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->count; i++)
		if (t->waiting[i].charge.card == card && !t->waiting[i].asleep)
			bytes += vgpu_most_bytes_of(&t->waiting[i].charge);
	return bytes;
}

bool vgpu_await_frees(int card, uint64_t bytes, int *round)
{
	struct timespec pause = {0};
	bool any = false;

	while (!any && __atomic_load_n(&vgpu_stream_frees, __ATOMIC_RELAXED)) {
		struct table *t = enter();
		uint64_t may_come_bytes;

		if (!t)
			break;
		any = settle(t);
		may_come_bytes = waiting_bytes(t, card);
		vgpu_unlock(&t->lock);
		if (any || *round == PAUSES || !may_come_bytes ||
		    (bytes > may_come_bytes && !vgpu_fits(card, bytes - may_come_bytes)))
			break;
		pause.tv_nsec = FIRST_PAUSE_NS << (*round)++;
		syscall(SYS_nanosleep, &pause, NULL);
	}
	return any;
}

void vgpu_end_known_free(uint64_t address)
{
	struct table *t = enter();

	for (uint32_t i = t ? t->count : 0; i-- > 0;) {
		struct waiting one = t->waiting[i];

		if (one.key != address || one.kind != VGPU_KIND_MEMORY)
			continue;
		if (!one.asleep)
			(void)real_cuEventDestroy_v2(one.event);
		remove_at(t, i);
		refund(&one);
	}
	if (t)
		vgpu_unlock(&t->lock);
}

void vgpu_frees_context_ending(uint32_t context)
{
	struct table *t =
	    __atomic_load_n(&vgpu_stream_frees, __ATOMIC_RELAXED) && context ? enter() : NULL;

	for (uint32_t i = 0; t && i < t->count; i++)
		if (t->waiting[i].event_context == context)
			t->waiting[i].asleep = true;
	if (t)
		vgpu_unlock(&t->lock);
}

/* Nobody can tell any more whether a free of another context's memory came about. */
void vgpu_frees_context_ended(uint32_t context, bool ended)
{
	struct table *t =
	    __atomic_load_n(&vgpu_stream_frees, __ATOMIC_RELAXED) && context ? enter() : NULL;

	for (uint32_t i = t ? t->count : 0; i-- > 0;) {
		struct waiting one = t->waiting[i];

		if (!ended && one.event_context == context) {
			t->waiting[i].asleep = false;
		} else if (ended && one.charge.context == context) {
			if (one.event_context != context && !one.asleep)
				(void)real_cuEventDestroy_v2(one.event);
			remove_at(t, i);
			refund(&one);
		} else if (ended && one.event_context == context) {
			remove_at(t, i);
			keep(&one);
		}
	}
	if (t)
		vgpu_unlock(&t->lock);
}
