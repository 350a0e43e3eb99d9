/*
 * Who a process is, and whether it still lives, from /proc.
 *
 * A pid alone is reused, a lock alone outlives its holder in a clone, and /proc may be another
 * namespace's or hide other users' processes: each of these is a case here, and where /proc cannot
 * tell, the answer says so. Feeds slots.c; knows nothing of slots.
 */
#ifndef VGPU_IDENTITY_H
#define VGPU_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

/* start_ticks and pid_namespace are 0 where /proc is absent or not of our own PID namespace. */
struct vgpu_identity {
	uint32_t pid;
	uint64_t start_ticks;
	uint64_t pid_namespace;
};

enum vgpu_presence {
	VGPU_GONE,    /* no such process, or another one under its number */
	VGPU_PRESENT, /* this very process */
	VGPU_UNKNOWN  /* not of our namespace, or nameless: ask the lock */
};

void vgpu_identity_of_self(struct vgpu_identity *self);

/* Is the other of our PID namespace, and named? */
bool vgpu_identity_can_see(const struct vgpu_identity *self, const struct vgpu_identity *other);

/* No process has that number now. One system call: signal 0, which is never delivered. For one that
 * we can see. */
bool vgpu_identity_pid_is_free(const struct vgpu_identity *other);

enum vgpu_presence vgpu_identity_presence(const struct vgpu_identity *self,
					  const struct vgpu_identity *other);

/*
 * Does the process map, at that offset, the file that we map at `ours`? True where it cannot be
 * seen. For a process that is VGPU_PRESENT.
 */
bool vgpu_identity_maps(const struct vgpu_identity *other, const void *ours, uint64_t offset);

#endif
