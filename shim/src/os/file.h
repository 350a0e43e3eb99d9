/* Files by raw system calls. glibc's stat functions would need GLIBC_2.33, and other libraries may
 * interpose the wrappers. No operation on a descriptor uses a wrapper, because a race detector that
 * sees only some of the operations would confuse different files of the same descriptor number. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct vgpu_file {
	uint64_t device;
	uint64_t inode;
	uint64_t bytes;
	uint64_t allocated_bytes; /* fewer if the file has holes */
	bool regular;
};

bool vgpu_file_of(int fd, struct vgpu_file *file);

/* The file at the path, with symbolic links followed. False: see errno. */
bool vgpu_file_at(const char *path, struct vgpu_file *file);

/* Open with O_CLOEXEC, without blocking if the file is a FIFO. Negative: see errno. */
int vgpu_open(const char *path, int flags);

/* Map shared, at an address that the kernel chooses. Undo with munmap. NULL: see errno. */
void *vgpu_map_file(int fd, uint64_t offset_bytes, uint64_t bytes, int protection);

/* Read up to `capacity` bytes from the file's start, and return the count. -1: not readable. */
long vgpu_read_some(const char *path, char *into, uint64_t capacity);
