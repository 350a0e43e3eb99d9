#include "loader/fork_delay.h"

#include <stdbool.h>

#include "os/process_start.h"

#define PAUSE_NS  50000
#define PAUSES	  20000
#define MAX_FORKS 16 /* most forks for which a reader waits */

/* libc's function behind pthread_atfork, which itself is in no shared library. The owner NULL means
 * the whole process, because this library is never unloaded. musl lacks the function. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner)
    __attribute__((weak));

static uint32_t inside, forking; /* inside: number of threads that read the list */
static __thread uint32_t depth;	 /* number of nested begins of this thread */
static __thread bool
    prepared; /* before_fork has run; false if a fork was under way at the registration */

static bool await(const uint32_t *count, uint32_t wanted)
{
	for (int i = 0; i < PAUSES; i++) {
		if (__atomic_load_n(count, __ATOMIC_SEQ_CST) == wanted)
			return true;
		vgpu_pause(PAUSE_NS);
	}
	return false;
}

/* Wait until no other thread reads the list. The forking thread counts as a reader until fork is
 * over, because other fork handlers may look up names. If a signal handler forks, its thread may be
 * a reader already, and goes on reading in the child. */
static void before_fork(void)
{
	__atomic_add_fetch(&forking, 1, __ATOMIC_SEQ_CST);
	await(&inside, depth != 0);
	depth++;
	prepared = true;
}

static void in_parent(void)
{
	if (!prepared)
		return;
	prepared = false;
	depth--;
	__atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST);
}

static void in_child(void)
{
	if (prepared)
		depth--;
	prepared = false;
	__atomic_store_n(&inside, depth != 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&forking, 0, __ATOMIC_SEQ_CST);
}

static void register_once(void)
{
	static bool registered;

	if (__register_atfork && !__atomic_load_n(&registered, __ATOMIC_RELAXED) &&
	    !__atomic_exchange_n(&registered, true, __ATOMIC_RELAXED))
		__register_atfork(before_fork, in_parent, in_child, NULL);
}

void vgpu_fork_delay_begin(void)
{
	if (depth++)
		return;
	register_once();
	for (int forks = 0;; forks++) {
		__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		if (!__atomic_load_n(&forking, __ATOMIC_SEQ_CST) || forks == MAX_FORKS)
			return;
		__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		if (!await(&forking, 0))
			forks = MAX_FORKS - 1;
	}
}

void vgpu_fork_delay_end(void)
{
	if (!--depth)
		__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}
