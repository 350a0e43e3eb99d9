/*
 * The identity of a process, and whether it still exists, from /proc.
 *
 * A pid alone is reused, a lock alone outlives its holder in a clone, and /proc may be another
 * namespace's or hide other users' processes: each of these is a case here, and if /proc cannot
 * decide, the result says so. Used by slots.c; independent of slots.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* start_ticks and pid_namespace are 0 if /proc is absent or not of this PID namespace. */
struct vgpu_identity {
	uint32_t pid;
	uint64_t start_ticks;
	uint64_t pid_namespace;
};

enum vgpu_presence {
	VGPU_GONE,    /* no such process, or another one under its number */
	VGPU_PRESENT, /* this very process */
	VGPU_UNKNOWN  /* of another namespace, or nameless: test the lock */
};

void vgpu_identity_of_self(struct vgpu_identity *self);

/* True if the other is in this PID namespace, and named. */
bool vgpu_identity_is_visible(const struct vgpu_identity *self, const struct vgpu_identity *other);

/* True if no process has that pid now. One system call: signal 0, which is never delivered. For a
 * process that is visible here. */
bool vgpu_identity_pid_is_free(const struct vgpu_identity *other);

enum vgpu_presence vgpu_identity_presence(const struct vgpu_identity *self,
					  const struct vgpu_identity *other);

/*
 * True if the process maps, at that offset, the file that this process maps at `ours`, or if that
 * is not visible. For a process that is VGPU_PRESENT.
 */
bool vgpu_identity_maps(const struct vgpu_identity *other, const void *ours, uint64_t offset);
