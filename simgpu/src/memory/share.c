/*
 * Physical memory from one process to another: by file descriptor, or by a fabric handle.
 *
 * A descriptor's file names the GPU and the allocation. A fabric handle has the same content. The
 * daemon keeps the memory while any process holds it or has a copy of a descriptor open. Each
 * exported descriptor is a separate open file description, which holds a lock.
 */
#define _GNU_SOURCE
#include "memory/vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHARE_MAGIC 0x6572616873757067 /* "gpushare" */

struct share {
	uint64_t magic, token, bytes;
	uint8_t uuid[16];
	uint32_t handle_types;
	uint32_t padding;
};

_Static_assert(sizeof(struct share) <= 64, "a fabric handle has 64 bytes");

static bool read_share(int fd, struct share *share)
{
	return pread(fd, share, sizeof(*share), 0) == (ssize_t)sizeof(*share) &&
	       share->magic == SHARE_MAGIC;
}

/* Opens the file again: the new open file description has its own locks. */
static int open_again(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* Called without the lock; `memory` must be pinned. */
static CUresult export_file(struct physical *memory, const struct share *share, int *out)
{
	/* Only one byte is locked, because programs may lock other bytes. */
	struct flock first = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
	int fd;

	/* A system call, because glibc before 2.27 lacks memfd_create. */
	if (memory->fd < 0)
		memory->fd = (int)syscall(SYS_memfd_create, "simgpu-shared", MFD_CLOEXEC);
	if (memory->fd < 0 ||
	    pwrite(memory->fd, share, sizeof(*share), 0) != (ssize_t)sizeof(*share))
		return result;
	fd = open_again(memory->fd);
	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &first) == 0)
		result = device_keep(memory->device, memory->id, fd);
	if (result == CUDA_SUCCESS)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return result;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags)
{
	struct share share = {.magic = SHARE_MAGIC};
	struct physical *memory;
	CUresult result;

	TRY(driver_enter());
	memory = physical_get(handle);
	if (!out || flags || !memory || !(type & SHAREABLE_TYPES) || type & (type - 1) ||
	    !(memory->prop.requestedHandleTypes & type))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!memory->device)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	physical_pin(memory);
	driver_unlock();
	memcpy(share.uuid, memory->device->gpu->uuid, sizeof(share.uuid));
	share.bytes = memory->bytes;
	share.handle_types = (uint32_t)memory->prop.requestedHandleTypes;
	result = device_export(memory->device, memory->id, &share.token);
	if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_FABRIC) {
		memset(out, 0, CU_IPC_HANDLE_SIZE);
		memcpy(out, &share, sizeof(share));
	} else if (result == CUDA_SUCCESS) {
		result = export_file(memory, &share, out);
	}
	driver_lock();
	physical_unpin(memory);
	return physical_leave(result);
}

/* Imports the memory. Its object owns `fd`, if that is not -1. Called without the lock. */
static CUresult adopt(const struct share *share, int fd, CUmemGenericAllocationHandle *out)
{
	struct device *device = device_of_uuid(share->uuid);
	struct physical *memory;
	uint64_t id;

	TRY(device ? device_import(device, 0, share->token, &id) : CUDA_ERROR_INVALID_DEVICE);
	driver_lock();
	memory = physical_new(share->bytes);
	memory->fd = fd;
	memory->device = device;
	memory->id = id;
	memory->prop = (CUmemAllocationProp){
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	    .requestedHandleTypes = (int)share->handle_types,
	    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
	*out = physical_handle(memory);
	return driver_leave(CUDA_SUCCESS);
}

/* Makes a new object for each import, even of an export of the same process. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shareable,
					int type)
{
	int given = (int)(intptr_t)shareable, fd = -1;
	struct share share;
	CUresult result;

	TRY(driver_enter());
	driver_unlock();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		if (!shareable)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&share, shareable, sizeof(share));
		if (share.magic != SHARE_MAGIC)
			return CUDA_ERROR_INVALID_VALUE;
	} else {
		if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_share(given, &share))
			return CUDA_ERROR_INVALID_VALUE;
		fd = open_again(given);
		if (fd < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	result = adopt(&share, fd, out);
	if (result != CUDA_SUCCESS && fd >= 0)
		close(fd);
	return result;
}
