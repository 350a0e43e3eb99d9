/* The wiped page; see process.h for the law. */
#include "process.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static struct vgpu_process *page;

/* Of the thread that last asked here; a fork child's first thread inherits its parent's. */
static __thread struct {
	uint64_t birth_ns;
	uint32_t tid;
} thread;

uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct vgpu_process *make_page(void)
{
	struct vgpu_process *made, *expected = NULL;

	made =
	    mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	if (madvise(made, sizeof(*made), MADV_WIPEONFORK) != 0)
		made->pid_if_unwiped = (uint32_t)syscall(SYS_getpid);
	if (!__atomic_compare_exchange_n(&page, &expected, made, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		munmap(made, sizeof(*made));
		return expected;
	}
	return made;
}

static void forget_parent(struct vgpu_process *process)
{
	uint32_t pid = (uint32_t)syscall(SYS_getpid);

	if (process->pid_if_unwiped == pid)
		return;
	memset(process, 0, sizeof(*process));
	process->pid_if_unwiped = pid;
}

struct vgpu_process *vgpu_process(void)
{
	struct vgpu_process *process = __atomic_load_n(&page, __ATOMIC_ACQUIRE);
	uint64_t unborn = 0;

	if (!process)
		process = make_page();
	if (!process)
		return NULL;
	if (process->pid_if_unwiped)
		forget_parent(process);
	if (__builtin_expect(!__atomic_load_n(&process->birth_ns, __ATOMIC_RELAXED), 0))
		__atomic_compare_exchange_n(&process->birth_ns, &unborn, vgpu_now_ns(), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return process;
}

uint32_t vgpu_thread_id(void)
{
	struct vgpu_process *process = vgpu_process();
	uint64_t birth_ns = process ? __atomic_load_n(&process->birth_ns, __ATOMIC_RELAXED) : 0;

	if (!birth_ns || thread.birth_ns != birth_ns) {
		thread.tid = (uint32_t)syscall(SYS_gettid);
		thread.birth_ns = birth_ns;
	}
	return thread.tid;
}
