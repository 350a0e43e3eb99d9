/*
 * Functions of the program that a stream calls when it reaches them.
 *
 * One thread of the driver runs them, in the order of their submission as far as their streams have
 * reached them. A wait for a stream waits for its functions too: a mark has the number of the last
 * function that it is behind, and a wait for it waits for those up to that number that are due. A
 * function may not call the driver; a wait in it waits for no function.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "graph/graph.h"
#include "graph/transfer.h"

struct pending {
	struct pending *next; /* submitted later */
	uint64_t number;
	struct mark ready;
	struct host_call call;
};

/* The GPU's predictions change: look again after so much time. */
#define LOOK_NS 10000000u

/* glibc has it at GLIBC_2.34 too; containers have older ones. */
#if defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct pending *first, **end = &first;
static uint64_t last_number;
static bool started;
static __thread bool is_caller;

/* With the lock: sleeps until then, or until a change. */
static void sleep_until_ns(uint64_t instant_ns)
{
	uint64_t now = now_ns(), left_ns = instant_ns > now ? instant_ns - now : 0;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until); /* the clock of conditions */
	left_ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(left_ns / 1000000000u);
	until.tv_nsec = (long)(left_ns % 1000000000u);
	pthread_cond_timedwait(&changed, &lock, &until);
}

/* With the lock, after a look at the GPUs. */
static struct pending *find_due(void)
{
	for (struct pending *pending = first; pending; pending = pending->next)
		if (mark_seen(&pending->ready))
			return pending;
	return NULL;
}

/* With the lock: when one may be due. */
static uint64_t next_due_ns(void)
{
	uint64_t due_ns = now_ns() + LOOK_NS, predicted_ns;
	const struct position *before = NULL, *at;

	for (struct pending *pending = first; pending; pending = pending->next) {
		at = pending->ready.count == 1 ? &pending->ready.at[0] : NULL;
		/* Later in the same channel is not earlier. */
		if (!at || !before || at->device != before->device ||
		    at->channel != before->channel) {
			predicted_ns = mark_predict_ns(&pending->ready, NULL);
			due_ns = predicted_ns < due_ns ? predicted_ns : due_ns;
		}
		before = at;
	}
	return due_ns;
}

static void drop(struct pending *pending)
{
	struct pending **link = &first;

	while (*link != pending)
		link = &(*link)->next;
	*link = pending->next;
	if (end == &pending->next)
		end = link;
	free(pending);
}

static void *run(void *nothing)
{
	is_caller = true;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct pending *due;

		marks_look();
		due = find_due();
		if (!first) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		if (!due) {
			sleep_until_ns(next_due_ns());
			continue;
		}
		pthread_mutex_unlock(&lock);
		due->call.function(due->call.data);
		pthread_mutex_lock(&lock);
		drop(due);
		pthread_cond_broadcast(&changed);
	}
	return nothing;
}

/* With the lock. */
static bool start(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (started)
		return true;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	started = pthread_create(&thread, &attributes, run, NULL) == 0;
	pthread_attr_destroy(&attributes);
	return started;
}

CUresult host_call_at(const struct mark *ready, const struct host_call *call, uint64_t *number)
{
	struct pending *pending = malloc(sizeof(*pending));

	if (!pending)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	if (!start()) {
		pthread_mutex_unlock(&lock);
		free(pending);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*number = ++last_number;
	*pending = (struct pending){.number = *number, .ready = *ready, .call = *call};
	*end = pending;
	end = &pending->next;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* With the lock: whether one up to that number is due and has not ended. */
static bool is_due(uint64_t number)
{
	for (struct pending *pending = first; !is_caller && pending && pending->number <= number;
	     pending = pending->next)
		if (mark_seen(&pending->ready))
			return true;
	return false;
}

bool work_is_done(const struct mark *mark)
{
	bool due;

	if (!mark_is_reached(mark))
		return false;
	pthread_mutex_lock(&lock);
	due = is_due(mark->calls);
	pthread_mutex_unlock(&lock);
	return !due;
}

void work_wait(const struct mark *mark)
{
	mark_wait(mark);
	pthread_mutex_lock(&lock);
	while (is_due(mark->calls))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
	struct host_call call = {function, data};
	struct stream *stream;
	struct mark ready;
	struct node *node;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = function ? stream_get(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (stream->capture) {
		node = capture_add(stream, CU_GRAPH_NODE_TYPE_HOST);
		if (!node)
			return driver_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		node->work.host = call;
		return driver_leave(CUDA_SUCCESS);
	}
	ready = stream_ready(stream);
	result = host_call_at(&ready, &call, &ready.calls);
	if (result == CUDA_SUCCESS)
		stream_raise(stream, &ready);
	return driver_leave(result);
}

struct callback {
	CUstreamCallback function;
	CUstream stream;
	void *data;
};

static void call_back(void *given)
{
	const struct callback *callback = given;

	callback->function(callback->stream, CUDA_SUCCESS, callback->data);
	free(given);
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data,
			     unsigned int flags)
{
	struct callback *callback;
	struct stream *stream;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = function && !flags ? stream_get(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = capture_allows_on(stream);
	driver_unlock();
	if (result != CUDA_SUCCESS)
		return result;
	callback = malloc(sizeof(*callback));
	if (!callback)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*callback = (struct callback){function, handle, data};
	result = cuLaunchHostFunc(handle, call_back, callback);
	if (result != CUDA_SUCCESS)
		free(callback);
	return result;
}
