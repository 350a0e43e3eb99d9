/* See turn.h. */
#include "turn.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "fork_gate.h"
#include "process.h"
#include "slot_lock.h"
#include "vgpu/contract.h"

#define FIRST_PAUSE_NS 20000
#define LAST_PAUSE_NS  2000000
#define WAIT_NS	       UINT64_C(10000000000)
#define ANCHOR_SLOT    VGPU_MAX_SLOTS /* past the last, so that it is taken for no slot's */

_Static_assert(VGPU_LOCK_TURN + VGPU_MOST_CARDS < VGPU_LOCK_LIMITS, "a byte for each card");

/* In which life of the process this thread has one, or waits for it: a signal handler of this
 * thread's would wait for its own thread. */
static __thread uint64_t busy_ns;

static bool lock_as(int fd, int card, int cards, short type)
{
	struct flock lock = {
	    .l_type = type,
	    .l_whence = SEEK_SET,
	    .l_start = (off_t)VGPU_LOCK_TURN + card,
	    .l_len = cards,
	};

	return syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock) == 0;
}

static void close_fd(struct vgpu_turn *turn)
{
	syscall(SYS_close, turn->fd);
	turn->fd = -1;
}

/* Where our slot's lock is not kept by a mapping (overlayfs), this one would not be either: there
 * the descriptor stays, and a child forked meanwhile has it too. */
static void anchor(struct vgpu_turn *turn, const struct vgpu_process *process)
{
	if (vgpu_slot_is_locked(turn->fd, process->owner.slot))
		turn->anchor = vgpu_anchor_cast(turn->fd, ANCHOR_SLOT);
	if (turn->anchor)
		close_fd(turn);
}

/* EAGAIN: somebody has it. Nobody forks while the lock hangs on a descriptor. */
static int try_once(struct vgpu_turn *turn, const struct vgpu_process *process, int card)
{
	int os_errno = 0;

	vgpu_fork_gate_enter();
	if (vgpu_reopen(process, &turn->fd, &os_errno) != VGPU_OK) {
		os_errno = EBADF;
	} else if (lock_as(turn->fd, card, 1, F_WRLCK)) {
		anchor(turn, process);
	} else {
		os_errno = errno == EACCES ? EAGAIN : errno;
		close_fd(turn);
	}
	vgpu_fork_gate_leave();
	return os_errno;
}

static bool await(struct vgpu_turn *turn, const struct vgpu_process *process, int card,
		  uint64_t wait_ns)
{
	uint64_t since_ns = vgpu_now_ns();
	struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};
	int os_errno;

	while ((os_errno = try_once(turn, process, card)) != 0) {
		if (os_errno != EAGAIN || vgpu_now_ns() - since_ns >= wait_ns)
			return false;
		syscall(SYS_nanosleep, &pause, NULL);
		if (pause.tv_nsec < LAST_PAUSE_NS)
			pause.tv_nsec *= 2;
	}
	return true;
}

bool vgpu_turn_take(int card, struct vgpu_turn *turn, bool waits)
{
	struct vgpu_process *process = vgpu_process();

	*turn = VGPU_NO_TURN;
	if (!process || busy_ns == process->birth.ns || vgpu_attach(NULL) != VGPU_OK)
		return false;
	busy_ns = process->birth.ns;
	if (await(turn, process, card, waits ? WAIT_NS : 0))
		turn->birth_ns = busy_ns;
	else
		busy_ns = 0;
	return vgpu_turn_is_held(turn);
}

/* A child that came of a signal handler within the turn has no turn, and its anchor is not there.
 * Unlocked by hand: a child forked meanwhile may have the description too. */
void vgpu_turn_end(struct vgpu_turn *turn)
{
	const struct vgpu_process *process = vgpu_process();

	if (!vgpu_turn_is_held(turn))
		return;
	if (process && turn->birth_ns == process->birth.ns) {
		if (turn->anchor)
			munmap(turn->anchor, VGPU_ANCHOR_MAPPED_BYTES);
		else
			(void)lock_as(turn->fd, 0, VGPU_MOST_CARDS, F_UNLCK);
		busy_ns = 0;
	}
	if (turn->fd >= 0)
		close_fd(turn);
	*turn = VGPU_NO_TURN;
}
