/*
 * The LIVE lock of a slot: one byte, past the file's end, of an open file description's locks.
 *
 * A process's slot is locked exclusively, a shared one by all its holders. No function here waits.
 */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vgpu/contract.h"

static inline struct flock vgpu_slot_byte(uint32_t slot, short type)
{
	return (struct flock){
	    .l_type = type,
	    .l_whence = SEEK_SET,
	    .l_start = (off_t)(VGPU_LOCK_LIVE + slot),
	    .l_len = 1,
	};
}

/* F_WRLCK, F_RDLCK (also from the exclusive lock to the shared one, without a gap), F_UNLCK. */
static inline bool vgpu_slot_lock(int fd, uint32_t slot, short type)
{
	struct flock lock = vgpu_slot_byte(slot, type);

	return syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock) == 0;
}

/* True if held by another open file description; also if the kernel does not report it. */
static inline bool vgpu_slot_is_locked(int fd, uint32_t slot)
{
	struct flock lock = vgpu_slot_byte(slot, F_WRLCK);

	return syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
