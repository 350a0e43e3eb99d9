/* See openers.h. */
#include "openers.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "birth.h"

static bool has_ended(uint32_t thread)
{
	return syscall(SYS_tgkill, syscall(SYS_getpid), thread, 0) != 0 && errno == ESRCH;
}

/* A row of the caller's own is a former thread's of that number, or was jumped out of. */
static void forget_the_dead(struct vgpu_openers *openers)
{
	int os_errno = errno;

	for (uint32_t i = openers->count; i-- > 0;) {
		uint32_t thread = openers->rows[i].thread;

		if (thread == vgpu_thread_id() || has_ended(thread))
			openers->rows[i] = openers->rows[--openers->count];
	}
	errno = os_errno;
}

void vgpu_openers_add(struct vgpu_openers *openers, uint32_t context)
{
	if (openers->count < VGPU_OPENERS)
		openers->rows[openers->count++] = (struct vgpu_opener){vgpu_thread_id(), context};
	else
		openers->uncounted++;
}

void vgpu_openers_remove(struct vgpu_openers *openers)
{
	for (uint32_t i = 0; i < openers->count; i++)
		if (openers->rows[i].thread == vgpu_thread_id()) {
			openers->rows[i] = openers->rows[--openers->count];
			return;
		}
	if (openers->uncounted)
		openers->uncounted--;
}

bool vgpu_openers_any(struct vgpu_openers *openers)
{
	if (openers->count)
		forget_the_dead(openers);
	return openers->count || openers->uncounted;
}

bool vgpu_openers_elsewhere(struct vgpu_openers *openers, uint32_t context)
{
	if (!vgpu_openers_any(openers))
		return false;
	for (uint32_t i = 0; i < openers->count; i++)
		if (openers->rows[i].context != context)
			return true;
	return openers->uncounted;
}
