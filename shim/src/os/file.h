/*
 * Files by raw system calls: glibc's stat family needs GLIBC_2.33, and wrappers may be interposed.
 * All of a descriptor's life goes by them: who watches the wrappers (a race detector does) would
 * hold a use that it saw, with no close that it saw, against the next file of that number.
 */
#ifndef VGPU_FILE_H
#define VGPU_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct vgpu_file {
	uint64_t device;
	uint64_t inode;
	uint64_t bytes;
	uint64_t allocated_bytes; /* less where the file has holes */
	bool regular;
};

bool vgpu_file_of(int fd, struct vgpu_file *file);

/* The file that the path leads to, symbolic links followed. False: errno says why. */
bool vgpu_file_at(const char *path, struct vgpu_file *file);

/* O_CLOEXEC, and never waits (a FIFO would). Negative: errno says why. */
int vgpu_open(const char *path, int flags);

/* Shared, wherever the kernel likes; munmap undoes it. NULL: errno says why. */
void *vgpu_map_file(int fd, uint64_t offset_bytes, uint64_t bytes, int protection);

/* Of descriptors or memory, which says nothing about the file. */
bool vgpu_is_shortage(int os_errno);

/* Up to `room` bytes from the file's start, whatever the kernel hands out at once; -1: unreadable.
 */
long vgpu_read_some(const char *path, char *into, uint64_t room);

#endif
