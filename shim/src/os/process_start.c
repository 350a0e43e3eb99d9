#include "os/process_start.h"

struct vgpu_process_start *vgpu_process_start_page;
__thread struct vgpu_thread vgpu_thread;

uint64_t vgpu_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct vgpu_process_start *vgpu_process_start_record(void)
{
	struct vgpu_process_start *start = vgpu_fork_wiped_pages(
	    (struct vgpu_fork_wiped **)&vgpu_process_start_page, VGPU_PROCESS_BYTES);
	uint64_t unset = 0;

	if (start && !__atomic_load_n(&start->ns, __ATOMIC_RELAXED))
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
