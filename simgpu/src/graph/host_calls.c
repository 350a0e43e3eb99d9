/*
 * Functions of the program that a stream calls when it reaches them.
 *
 * One thread of the driver runs them, the earliest due first. A wait for a stream waits for its
 * functions too: every wait for an instant waits for the functions that are due by then, of all
 * streams. A function may not call the driver; a wait in it waits for no function.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "graph/graph.h"
#include "graph/transfer.h"

struct pending {
	struct pending *next; /* due no earlier */
	uint64_t ready_ns;
	struct host_call call;
};

/* glibc has it at GLIBC_2.34 too; containers have older ones. */
#if defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct pending *first;
static bool started, running; /* the running one stays first until it has ended */
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

static void *run(void *nothing)
{
	is_caller = true;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct pending *due = first;

		if (!due) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		if (due->ready_ns > now_ns()) {
			sleep_until_ns(due->ready_ns);
			continue;
		}
		running = true;
		pthread_mutex_unlock(&lock);
		due->call.function(due->call.data);
		pthread_mutex_lock(&lock);
		running = false;
		first = due->next;
		free(due);
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

CUresult host_call_at(uint64_t ready_ns, const struct host_call *call)
{
	struct pending *pending = malloc(sizeof(*pending)), **link = &first;

	if (!pending)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pending = (struct pending){.ready_ns = ready_ns, .call = *call};
	pthread_mutex_lock(&lock);
	if (!start()) {
		pthread_mutex_unlock(&lock);
		free(pending);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	while (*link && ((running && link == &first) || (*link)->ready_ns <= ready_ns))
		link = &(*link)->next;
	pending->next = *link;
	*link = pending;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

bool host_calls_due(uint64_t until_ns)
{
	bool due;

	pthread_mutex_lock(&lock);
	due = !is_caller && first && first->ready_ns <= until_ns;
	pthread_mutex_unlock(&lock);
	return due;
}

void host_calls_wait(uint64_t until_ns)
{
	pthread_mutex_lock(&lock);
	while (!is_caller && first && first->ready_ns <= until_ns)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
	struct host_call call = {function, data};
	struct stream *stream;
	uint64_t ready_ns, now;
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
	ready_ns = stream_ready_ns(stream);
	now = now_ns();
	ready_ns = ready_ns > now ? ready_ns : now;
	stream_submit(stream, ready_ns);
	return driver_leave(host_call_at(ready_ns, &call));
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
