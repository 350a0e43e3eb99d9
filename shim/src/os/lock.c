#include "os/lock.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS_PER_YIELD	 64
#define YIELDS_PER_CHECK 64
#define PAUSE_NS	 50000
#define MOST_PAUSES	 10000 /* if the thread holds another lock: 0.5 s or more */

__thread uint32_t vgpu_locks_held;

/* Leave the core's pipeline to its sibling thread. */
static inline void wait_a_little(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

/* Signal 0 is never delivered; it only tests whether the thread still exists in this process. */
static bool take_from_exited(struct vgpu_lock *lock)
{
	uint32_t holder = __atomic_load_n(&lock->holder_tid, __ATOMIC_RELAXED);

	return holder != 0 && syscall(SYS_tgkill, syscall(SYS_getpid), holder, 0) != 0 &&
	       errno == ESRCH && vgpu_lock_take(lock, holder);
}

bool vgpu_trylock(struct vgpu_lock *lock)
{
	bool taken = vgpu_lock_take(lock, 0) || take_from_exited(lock);

	vgpu_locks_held += taken;
	return taken;
}

bool vgpu_lock_wait(struct vgpu_lock *lock)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint32_t pauses = 0;

	if (__atomic_load_n(&lock->holder_tid, __ATOMIC_RELAXED) == vgpu_thread_id())
		return false; /* a signal handler interrupted the holder */
	for (uint32_t spins = 0; !vgpu_lock_take(lock, 0); spins++) {
		if (spins % SPINS_PER_YIELD != SPINS_PER_YIELD - 1)
			wait_a_little();
		else if (spins / SPINS_PER_YIELD % YIELDS_PER_CHECK != YIELDS_PER_CHECK - 1)
			syscall(SYS_sched_yield);
		else if (take_from_exited(lock))
			return true;
		else if (vgpu_locks_held && pauses++ == MOST_PAUSES)
			return false;
		else
			syscall(SYS_nanosleep, &pause,
				NULL); /* sched_yield runs no thread of lower priority */
	}
	return true;
}
