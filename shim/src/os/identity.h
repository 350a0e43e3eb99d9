/*
 * The identity of a process, and whether it still exists, by /proc.
 *
 * A pid can be reused. A lock can outlive its holder in a clone. /proc may be another PID
 * namespace's, or hide other users' processes. If /proc cannot decide, the result is VGPU_UNKNOWN.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A process. start_ticks and pid_namespace are 0 if /proc is absent or of another PID namespace. */
struct vgpu_identity {
	uint32_t pid;
	uint64_t start_ticks;
	uint64_t pid_namespace;
};

enum vgpu_presence {
	VGPU_GONE,    /* no such process, or its pid was reused */
	VGPU_PRESENT, /* that process exists */
	VGPU_UNKNOWN  /* not visible: test the slot's lock instead */
};

void vgpu_identity_of_self(struct vgpu_identity *self);

/* True if `other` is in this process's PID namespace, and its start time is known. */
bool vgpu_identity_is_visible(const struct vgpu_identity *self, const struct vgpu_identity *other);

/* True if no process has that pid now. Call it only for a visible process. It costs one system
 * call, which sends signal 0. The kernel never delivers this signal. */
bool vgpu_identity_pid_is_free(const struct vgpu_identity *other);

enum vgpu_presence vgpu_identity_presence(const struct vgpu_identity *self,
					  const struct vgpu_identity *other);

/* True if `other` maps the file that this process maps at `ours`, at that offset of the file, or if
 * the maps cannot be read. Call it only for a process that is VGPU_PRESENT. */
bool vgpu_identity_maps(const struct vgpu_identity *other, const void *ours, uint64_t offset);
