/* Files by raw system calls; see file.h. */
#include "os/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool fill(struct vgpu_file *file, const struct stat *status)
{
	file->device = status->st_dev;
	file->inode = status->st_ino;
	file->bytes = (uint64_t)status->st_size;
	file->allocated_bytes = (uint64_t)status->st_blocks * 512;
	file->regular = S_ISREG(status->st_mode);
	return true;
}

bool vgpu_file_of(int fd, struct vgpu_file *file)
{
	struct stat status;

	return syscall(SYS_fstat, fd, &status) == 0 && fill(file, &status);
}

bool vgpu_file_at(const char *path, struct vgpu_file *file)
{
	struct stat status;

	return syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0 && fill(file, &status);
}

int vgpu_open(const char *path, int flags)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
			    0);
}

void *vgpu_map_file(int fd, uint64_t offset_bytes, uint64_t bytes, int protection)
{
	long at = syscall(SYS_mmap, NULL, bytes, protection, MAP_SHARED, fd, offset_bytes);

	return at == -1 ? NULL : (void *)at;
}

long vgpu_read_some(const char *path, char *into, uint64_t capacity)
{
	uint64_t have = 0;
	long got;
	int fd = vgpu_open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	do {
		got = syscall(SYS_read, fd, into + have, capacity - have);
		if (got > 0)
			have += (uint64_t)got;
	} while (got > 0 && have < capacity);
	syscall(SYS_close, fd);
	return got < 0 ? -1 : (long)have;
}
