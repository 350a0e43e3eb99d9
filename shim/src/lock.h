/*
 * A lock between the threads of one process, kept in the page that a fork child finds zeroed.
 *
 * No futex, no pthread: a waiter spins, yields, and now and then asks whether the holder still
 * exists, so that a thread that ended (or a copy of its lock in a fork child) wedges nobody. What
 * the lock guards must therefore bear being left half done; the counter does by design.
 */
#ifndef VGPU_LOCK_H
#define VGPU_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* The holder's thread number; 0: free. */
struct vgpu_lock {
	uint32_t holder_tid;
};

void vgpu_lock(struct vgpu_lock *lock);
bool vgpu_trylock(struct vgpu_lock *lock);
bool vgpu_lock_is_mine(const struct vgpu_lock *lock); /* the calling thread holds it */
void vgpu_unlock(struct vgpu_lock *lock);

#endif
