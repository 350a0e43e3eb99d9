#include "os/lock.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS_PER_YIELD	 64
#define YIELDS_PER_CHECK 64
#define PAUSE_NS	 50000
#define MAX_PAUSES	 10000 /* limit for a thread that holds another lock: at least 0.5 s */

__thread uint32_t vgpu_locks_held;

/* Let the core's other hardware thread run for a moment. */
static inline void wait_a_little(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

/* Take the lock if its holder has ended. Signal 0 is never delivered, and only tests whether the
 * thread exists in this process. */
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
	uint32_t pauses = 0;

	if (__atomic_load_n(&lock->holder_tid, __ATOMIC_RELAXED) == vgpu_thread_id())
		return false; /* a signal handler runs in the holder's thread */
	for (uint32_t spins = 0; !vgpu_lock_take(lock, 0); spins++) {
		if (spins % SPINS_PER_YIELD != SPINS_PER_YIELD - 1)
			wait_a_little();
		else if (spins / SPINS_PER_YIELD % YIELDS_PER_CHECK != YIELDS_PER_CHECK - 1)
			syscall(SYS_sched_yield);
		else if (take_from_exited(lock))
			return true;
		else if (vgpu_locks_held && pauses++ == MAX_PAUSES)
			return false;
		else
			vgpu_pause(PAUSE_NS); /* sched_yield lets no thread of lower priority run */
	}
	return true;
}
