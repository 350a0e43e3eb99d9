/*
 * A lock between the threads of one process, in the page that is zeroed in a fork child.
 *
 * A signal handler may call the driver, and so the library, while its own thread is inside. It must
 * not wait for that thread: an unavailable lock is false, and the caller takes the action that
 * leaves a charge too high rather than too low. The same applies to a thread that already holds a
 * lock and has waited long for another, because two such threads could wait without end.
 *
 * No futex, no pthread: a waiter spins, yields, and periodically tests whether the holder still
 * exists, so that a thread that ended (or a copy of its lock in a fork child) blocks no other. The
 * guarded data must therefore be valid half-updated; the counter is by design.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/process_start.h"

/* The holder's thread number; 0: free. */
struct vgpu_lock {
	uint32_t holder_tid;
};

static inline bool vgpu_lock_take(struct vgpu_lock *lock, uint32_t from)
{
	return __atomic_compare_exchange_n(&lock->holder_tid, &from, vgpu_thread_id(), false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

extern __thread uint32_t vgpu_locks_held; /* by this thread */

bool vgpu_lock_wait(struct vgpu_lock *lock);
bool vgpu_trylock(struct vgpu_lock *lock);

/* False: not available, see above. */
__attribute__((warn_unused_result)) static inline bool vgpu_lock(struct vgpu_lock *lock)
{
	if (__builtin_expect(!vgpu_lock_take(lock, 0), 0) && !vgpu_lock_wait(lock))
		return false;
	vgpu_locks_held++;
	return true;
}

static inline void vgpu_unlock(struct vgpu_lock *lock)
{
	vgpu_locks_held--;
	__atomic_store_n(&lock->holder_tid, 0, __ATOMIC_RELEASE);
}
