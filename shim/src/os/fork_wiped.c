#include "os/fork_wiped.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

void *vgpu_fork_wiped_fresh(size_t bytes, bool *wiped)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool done;

	if (pages == MAP_FAILED)
		return NULL;
	done = madvise(pages, bytes, MADV_WIPEONFORK) == 0;
	if (wiped)
		*wiped = done;
	return pages;
}

void *vgpu_fork_wiped_slow(struct vgpu_fork_wiped **at, size_t bytes)
{
	struct vgpu_fork_wiped *pages = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	pid_t self = (pid_t)syscall(SYS_getpid);
	struct vgpu_fork_wiped *fresh;
	bool wiped;

	if (pages && (!pages->owner || pages->owner == self))
		return pages;
	fresh = vgpu_fork_wiped_fresh(bytes, &wiped);
	if (!fresh)
		return NULL;
	if (!wiped)
		fresh->owner = self;
	if (__atomic_compare_exchange_n(at, &pages, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	munmap(fresh, bytes); /* another thread was first */
	return pages;
}
