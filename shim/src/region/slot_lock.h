/*
 * The lock of a slot: an open file description's lock of one byte beyond the file's end.
 *
 * A process locks its own slot exclusively. The holders of a shared slot share its lock. No call
 * waits.
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

/* Set the lock to F_WRLCK, F_RDLCK or F_UNLCK. While the lock changes from exclusive to shared, it
 * is never free. */
static inline bool vgpu_slot_lock(int fd, uint32_t slot, short type)
{
	struct flock lock = vgpu_slot_byte(slot, type);

	return syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock) == 0;
}

/* True if another open file description has a lock on the slot, or if that is unknown. */
static inline bool vgpu_slot_is_locked(int fd, uint32_t slot)
{
	struct flock lock = vgpu_slot_byte(slot, F_WRLCK);

	return syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
