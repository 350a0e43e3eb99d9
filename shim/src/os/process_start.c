#include "os/process_start.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os/fork_wiped.h"

struct vgpu_process_start *vgpu_process_start_page;
__thread struct vgpu_thread vgpu_thread;

uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct vgpu_process_start *make_page(void)
{
	struct vgpu_process_start *made, *expected = NULL;
	bool wiped;

	made = vgpu_fork_wiped_fresh(VGPU_PROCESS_BYTES, &wiped);
	if (!made)
		return NULL;
	if (!wiped)
		made->pid_if_unwiped = (uint32_t)syscall(SYS_getpid);
	if (!__atomic_compare_exchange_n(&vgpu_process_start_page, &expected, made, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(made, VGPU_PROCESS_BYTES);
		return expected;
	}
	return made;
}

static void clear_inherited(struct vgpu_process_start *start)
{
	uint32_t pid = (uint32_t)syscall(SYS_getpid);

	if (start->pid_if_unwiped == pid)
		return;
	memset(start, 0, VGPU_PROCESS_BYTES);
	start->pid_if_unwiped = pid;
}

struct vgpu_process_start *vgpu_process_start_record(void)
{
	struct vgpu_process_start *start =
	    __atomic_load_n(&vgpu_process_start_page, __ATOMIC_ACQUIRE);
	uint64_t unset = 0;

	if (!start)
		start = make_page();
	if (!start)
		return NULL;
	if (start->pid_if_unwiped)
		clear_inherited(start);
	if (!__atomic_load_n(&start->ns, __ATOMIC_RELAXED))
		__atomic_compare_exchange_n(&start->ns, &unset, vgpu_now_ns(), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return start;
}

uint32_t vgpu_thread_begin(void)
{
	const struct vgpu_process_start *start = vgpu_process_start();

	vgpu_thread.id = (uint32_t)syscall(SYS_gettid);
	vgpu_thread.process_start_ns = start ? __atomic_load_n(&start->ns, __ATOMIC_RELAXED) : 0;
	return vgpu_thread.id;
}
