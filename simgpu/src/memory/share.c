/*
 * Physical memory from one process to another: by file descriptor, or by a fabric handle.
 *
 * A descriptor is that of the memory's file; the page after its data identifies the GPU and the
 * allocation. A fabric handle has the same content, and the location of the exporter's file: once
 * the exporter has exited, an importer by fabric handle holds the memory, but not the data. The
 * daemon keeps the bytes as long as any process holds them, or any copy of a descriptor is open:
 * each exported one is an open file description of its own that holds a lock.
 */
#define _GNU_SOURCE
#include "memory/vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARE_MAGIC 0x6572616873757067 /* "gpushare" */

struct share {
	uint64_t magic, token, bytes;
	uint8_t uuid[16];
	uint32_t handle_types;
	int32_t pid, fd;
	uint32_t padding;
};

_Static_assert(sizeof(struct share) <= 64, "a fabric handle has 64 bytes");

static bool read_share(int fd, struct share *share)
{
	off_t bytes = lseek(fd, 0, SEEK_END);

	return bytes > SHARE_PAGE &&
	       pread(fd, share, sizeof(*share), bytes - SHARE_PAGE) == (ssize_t)sizeof(*share) &&
	       share->magic == SHARE_MAGIC && share->bytes + SHARE_PAGE == (uint64_t)bytes;
}

/* Called without the lock; `memory` is pinned. */
static CUresult name_it(struct physical *memory, struct share *share)
{
	CUresult result = device_export(memory->device, memory->id, &share->token);

	if (result != CUDA_SUCCESS)
		return result;
	if (pwrite(memory->fd, share, sizeof(*share), (off_t)memory->bytes) !=
	    (ssize_t)sizeof(*share))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return CUDA_SUCCESS;
}

/* Another open file description of the same file, which shares no lock with it. */
static int open_again(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static CUresult export_file(const struct physical *memory, int *out)
{
	/* One byte: a program may keep locks of its own on the description. */
	struct flock first = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
	int fd = open_again(memory->fd);
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;

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
	struct share share = {.magic = SHARE_MAGIC, .pid = getpid()};
	struct physical *memory;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
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
	share.fd = memory->fd;
	result = name_it(memory, &share);
	if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_FABRIC) {
		memset(out, 0, CU_IPC_HANDLE_SIZE);
		memcpy(out, &share, sizeof(share));
	} else if (result == CUDA_SUCCESS) {
		result = export_file(memory, out);
	}
	driver_lock();
	physical_unpin(memory);
	return physical_leave(result);
}

/* A descriptor of the exporter's file, or -1 if it has exited. */
static int open_fabric(const struct share *share)
{
	struct share found;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", share->pid, share->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && read_share(fd, &found) && found.token == share->token)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static struct device *device_of(const uint8_t *uuid)
{
	for (int i = 0; i < driver.devices; i++)
		if (memcmp(driver.device[i].gpu->uuid, uuid, 16) == 0)
			return &driver.device[i];
	return NULL;
}

/* Called without the lock; `fd` becomes the memory's, -1: a file of its own. */
static CUresult adopt(const struct share *share, int fd, struct physical **out)
{
	struct device *device = device_of(share->uuid);
	struct physical *memory;
	uint64_t id;
	CUresult result =
	    device ? device_import(device, share->token, &id) : CUDA_ERROR_INVALID_DEVICE;

	if (result != CUDA_SUCCESS)
		return result;
	driver_lock();
	memory = physical_new(share->bytes, true);
	if (!memory) {
		driver_unlock();
		(void)device_give_back(device, id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (fd >= 0) {
		close(memory->fd);
		memory->fd = fd;
	}
	memory->device = device;
	memory->id = id;
	memory->prop = (CUmemAllocationProp){
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	    .requestedHandleTypes = (int)share->handle_types,
	    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
	*out = memory;
	return CUDA_SUCCESS;
}

/* Each import is an object of its own, also that of this process's own export. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shareable,
					int type)
{
	int given = (int)(intptr_t)shareable, fd;
	struct physical *memory;
	struct share share;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	driver_unlock();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
		if (!shareable)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&share, shareable, sizeof(share));
		if (share.magic != SHARE_MAGIC)
			return CUDA_ERROR_INVALID_VALUE;
		fd = open_fabric(&share);
	} else {
		if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_share(given, &share))
			return CUDA_ERROR_INVALID_VALUE;
		fd = open_again(given);
		if (fd < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	result = adopt(&share, fd, &memory);
	if (result != CUDA_SUCCESS) {
		if (fd >= 0)
			close(fd);
		return result;
	}
	*out = physical_handle(memory);
	return driver_leave(CUDA_SUCCESS);
}
