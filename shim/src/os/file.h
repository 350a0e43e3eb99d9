/*
 * Files by raw system calls: glibc's stat family needs GLIBC_2.33, and wrappers may be interposed.
 * All operations on a descriptor use them: a race detector that watches the wrappers would
 * attribute a use without a close to the next file of that number.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct vgpu_file {
	uint64_t device;
	uint64_t inode;
	uint64_t bytes;
	uint64_t allocated_bytes; /* less if the file has holes */
	bool regular;
};

bool vgpu_file_of(int fd, struct vgpu_file *file);

/* The file at the path, symbolic links followed. False: see errno. */
bool vgpu_file_at(const char *path, struct vgpu_file *file);

/* O_CLOEXEC, and never blocks (a FIFO would). Negative: see errno. */
int vgpu_open(const char *path, int flags);

/* Shared, at an address of the kernel's choice; undo with munmap. NULL: see errno. */
void *vgpu_map_file(int fd, uint64_t offset_bytes, uint64_t bytes, int protection);

/* For lack of descriptors or memory, which does not depend on the file. */
bool vgpu_is_shortage(int os_errno);

/* Up to `capacity` bytes from the file's start, however many the kernel returns at once; -1:
 * unreadable. */
long vgpu_read_some(const char *path, char *into, uint64_t capacity);
