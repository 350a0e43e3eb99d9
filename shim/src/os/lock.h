/*
 * A lock between the threads of one process, in a page that is zeroed in a fork child.
 *
 * A signal handler may call the driver, and so this library, while its own thread holds the lock,
 * for which it must not wait. In that case locking fails. Locking also fails if the thread holds
 * another lock and has waited long, because two such threads could wait for each other forever. If
 * locking fails, the caller leaves a charge too high rather than too low.
 *
 * A waiter spins, yields, and sometimes tests whether the holder still exists. If not, because the
 * holder has ended or was not copied by a fork, the waiter takes the lock. Therefore the guarded
 * data must be usable even when half updated, as the counter is by design.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "os/process_start.h"

/* holder_tid is the thread number of the holder; 0: free */
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

/* False: the lock is not available. */
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
