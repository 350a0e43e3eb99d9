/*
 * Pages that a fork child finds empty: anonymous memory that the kernel wipes there
 * (MADV_WIPEONFORK; raw clone too). Before Linux 4.14 the creator's process id is compared instead,
 * and a child maps pages of its own.
 *
 * No malloc: a hook may run while the program's own allocator is in any state.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The first member of every type that lies in such pages. */
struct vgpu_fork_wiped {
	pid_t owner; /* 0: the kernel wipes */
};

/* Such pages for a caller's own pointer; undo with munmap. If they are not `*wiped`, the caller
 * must distinguish a child from its parent; NULL: a child has no pointer to them. NULL: the kernel
 * provides none. */
void *vgpu_fork_wiped_fresh(size_t bytes, bool *wiped);

/* Find or make, if vgpu_fork_wiped_pages does not return at once. */
void *vgpu_fork_wiped_slow(struct vgpu_fork_wiped **at, size_t bytes);

/* The pages at `at`, made and all zero at first use; NULL if the kernel provides none. */
static inline void *vgpu_fork_wiped_pages(struct vgpu_fork_wiped **at, size_t bytes)
{
	struct vgpu_fork_wiped *pages = __atomic_load_n(at, __ATOMIC_ACQUIRE);

	return pages && !pages->owner ? pages : vgpu_fork_wiped_slow(at, bytes);
}
