/*
 * Pages that a fork child finds empty: anonymous memory that the kernel wipes in the child
 * (MADV_WIPEONFORK), even after a raw clone. Before Linux 4.14 the creator's process id is compared
 * instead, and a child maps pages of its own.
 *
 * malloc is not used, because a hook may run while the program's allocator is in any state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The first member of every type that lies in such pages. */
struct vgpu_fork_wiped {
	pid_t owner; /* 0: the kernel wipes the pages */
};

/* Map such pages for a pointer of the caller. Undo with munmap. If the kernel cannot wipe them,
 * `*wiped` is false, and the caller must distinguish a child from its parent. `wiped` may be NULL
 * if a child has no pointer to the pages. Return NULL if the kernel provides none. */
void *vgpu_fork_wiped_fresh(size_t bytes, bool *wiped);

/* Find or make the pages. Only vgpu_fork_wiped_pages calls this, where it has none to return. */
void *vgpu_fork_wiped_slow(struct vgpu_fork_wiped **at, size_t bytes);

/* Return the pages at `at`, made at first use and all zero. NULL: the kernel provides none. */
static inline void *vgpu_fork_wiped_pages(struct vgpu_fork_wiped **at, size_t bytes)
{
	struct vgpu_fork_wiped *pages = __atomic_load_n(at, __ATOMIC_ACQUIRE);

	return pages && !pages->owner ? pages : vgpu_fork_wiped_slow(at, bytes);
}
