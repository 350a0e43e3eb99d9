/* See turn.h. */
#include "turn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "process.h"
#include "vgpu/contract.h"

#define FIRST_PAUSE_NS 20000
#define LAST_PAUSE_NS  2000000
#define WAIT_NS	       UINT64_C(10000000000)

_Static_assert(VGPU_LOCK_TURN + VGPU_MOST_CARDS < VGPU_LOCK_LIMITS, "a byte for each card");

/* Or waits for it: a signal handler of this thread's would wait for its own thread. */
static __thread bool has_one;

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

static bool await(int fd, int card, uint64_t wait_ns)
{
	uint64_t since_ns = vgpu_now_ns();
	struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};

	while (!lock_as(fd, card, 1, F_WRLCK)) {
		if ((errno != EAGAIN && errno != EACCES) || vgpu_now_ns() - since_ns >= wait_ns)
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
	int os_errno;

	*turn = VGPU_NO_TURN;
	if (has_one || !process || !vgpu_is_mapped(process) ||
	    vgpu_reopen(process, &turn->fd, &os_errno) != VGPU_OK)
		return false;
	has_one = true;
	if (await(turn->fd, card, waits ? WAIT_NS : 0))
		return true;
	vgpu_turn_end(turn);
	return false;
}

/* Unlocked by hand: a child forked meanwhile has the description too. */
void vgpu_turn_end(struct vgpu_turn *turn)
{
	if (turn->fd < 0)
		return;
	(void)lock_as(turn->fd, 0, VGPU_MOST_CARDS, F_UNLCK);
	syscall(SYS_close, turn->fd);
	turn->fd = -1;
	has_one = false;
}
