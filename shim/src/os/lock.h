/*
 * A lock between the threads of one process, in a page that is zeroed in a fork child.
 *
 * A signal handler may call the driver, and so this library, while its own thread holds a lock. It
 * must not wait for that thread. So locking returns false if the lock is not available, and the
 * caller then leaves a charge too high rather than too low. It also returns false to a thread that
 * holds another lock and has waited long, because two such threads could wait for each other
 * forever.
 *
 * There is no futex and no pthread here: a waiter spins, yields, and sometimes tests whether the
 * holder still exists. So a thread that ended, or the copy of its lock in a fork child, blocks no
 * other thread. Therefore the guarded data must be valid even when half updated, as the counter is
 * by design.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/process_start.h"

/* thread number of the holder; 0: free */
struct vgpu_lock {
	uint32_t holder_tid;
};

static inline bool vgpu_lock_take(struct vgpu_lock *lock, uint32_t from)
{
	return __atomic_compare_exchange_n(&lock->holder_tid, &from, vgpu_thread_id(), false,
					   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

extern __thread uint32_t vgpu_locks_held; /* number of locks that this thread holds */

bool vgpu_lock_wait(struct vgpu_lock *lock);
bool vgpu_trylock(struct vgpu_lock *lock);

/* False: not available (see above). */
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
