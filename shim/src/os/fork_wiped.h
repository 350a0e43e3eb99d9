/*
 * Pages that are empty in a child, even after a raw clone: anonymous memory that the kernel wipes
 * (MADV_WIPEONFORK). Linux before 4.14 cannot wipe pages. There the pages have the pid of their
 * creator, and a process with another pid maps pages of its own.
 *
 * malloc is not used, because a hook may run while the program's allocator is in any state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The first member of every type that lies in wiped pages. */
struct vgpu_fork_wiped {
	pid_t owner; /* 0: the kernel wipes the pages */
};

/* Map such pages. Undo with munmap. If the kernel cannot wipe pages, `*wiped` is false, and the
 * caller must distinguish a child from its parent. `wiped` may be NULL if a child has no pointer to
 * the pages. NULL: the kernel provides no pages. */
void *vgpu_fork_wiped_fresh(size_t bytes, bool *wiped);

/* The slow path of vgpu_fork_wiped_pages. */
void *vgpu_fork_wiped_slow(struct vgpu_fork_wiped **at, size_t bytes);

/* Return the pages to which `*at` points. They are made at first use, all zero. NULL: the kernel
 * provides no pages. */
static inline void *vgpu_fork_wiped_pages(struct vgpu_fork_wiped **at, size_t bytes)
{
	struct vgpu_fork_wiped *pages = __atomic_load_n(at, __ATOMIC_ACQUIRE);

	return pages && !pages->owner ? pages : vgpu_fork_wiped_slow(at, bytes);
}
