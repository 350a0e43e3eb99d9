/*
 * The start time of this process's state, and the calling thread's number. A child, by fork or raw
 * clone, inherits thread-local values of its parent. So the thread's number is stored with the
 * start time, which is another one in the child.
 *
 * Every lock uses these functions, so the usual case is inline.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os/fork_wiped.h"

/* The size of the page that a child finds empty. struct vgpu_process (region/process.h) is in
 * it. */
enum { VGPU_PROCESS_BYTES = 4096 };

/* The first member of the page. */
struct vgpu_process_start {
	struct vgpu_fork_wiped wiped;
	uint64_t ns; /* CLOCK_MONOTONIC at first use; 0 before that, and in a new child */
};

struct vgpu_thread {
	uint64_t process_start_ns; /* the start time of the process in which `id` is valid */
	uint32_t id;
};

extern struct vgpu_process_start *vgpu_process_start_page;
extern __thread struct vgpu_thread vgpu_thread;

uint64_t vgpu_now_ns(void); /* CLOCK_MONOTONIC */

/* Sleep for less than a second. The wrapper of libc could be interposed. */
static inline void vgpu_pause(uint64_t pause_ns)
{
	const struct timespec pause = {.tv_nsec = (long)pause_ns};

	syscall(SYS_nanosleep, &pause, NULL);
}

struct vgpu_process_start *vgpu_process_start_record(void);
uint32_t vgpu_thread_begin(void);

/* The page, or NULL if the kernel provides none. */
static inline struct vgpu_process_start *vgpu_process_start(void)
{
	struct vgpu_process_start *start =
	    __atomic_load_n(&vgpu_process_start_page, __ATOMIC_ACQUIRE);

	if (__builtin_expect(
		start && !start->wiped.owner && __atomic_load_n(&start->ns, __ATOMIC_RELAXED), 1))
		return start;
	return vgpu_process_start_record();
}

static inline uint32_t vgpu_thread_id(void)
{
	const struct vgpu_process_start *start = vgpu_process_start();

	if (__builtin_expect(start && vgpu_thread.process_start_ns ==
					  __atomic_load_n(&start->ns, __ATOMIC_RELAXED),
			     1))
		return vgpu_thread.id;
	return vgpu_thread_begin();
}
