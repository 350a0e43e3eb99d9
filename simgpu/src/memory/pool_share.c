/*
 * Pools and their allocations in other processes. A pool is exported as a memory file that
 * identifies it, and an allocation as the daemon's token for its chunk and an offset in the chunk.
 *
 * Memory exists while any process holds it. Written bytes are not shared, because each process has
 * its own pages.
 */
#define _GNU_SOURCE
#include "memory/pool.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x6c6f6f706d6973ull /* "simpool" */

struct shared_pool {
	uint64_t magic, origin;
	uint8_t uuid[16];
};

struct shared_piece {
	uint64_t magic, origin, token, chunk_bytes, offset, bytes;
};

_Static_assert(sizeof(struct shared_piece) <= sizeof(CUmemPoolPtrExportData), "it travels in that");

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, int type,
					  unsigned long long flags)
{
	struct shared_pool shared = {.magic = MAGIC};
	struct pool *pool;
	int fd;

	TRY(pool_enter(handle, &pool));
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !(pool->handle_types & type) || pool->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!pool->origin)
		pool->origin = now_ns() ^ (uint64_t)getpid() << 40;
	shared.origin = pool->origin;
	memcpy(shared.uuid, pool->device->gpu->uuid, sizeof(shared.uuid));
	driver_unlock();
	fd = (int)syscall(SYS_memfd_create, "simgpu-pool", MFD_CLOEXEC);
	if (fd < 0 || write(fd, &shared, sizeof(shared)) != (ssize_t)sizeof(shared)) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
					    unsigned long long flags)
{
	struct shared_pool shared = {0};
	struct device *device;
	struct pool *pool;

	TRY(driver_enter());
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    pread((int)(uintptr_t)handle, &shared, sizeof(shared), 0) != (ssize_t)sizeof(shared) ||
	    shared.magic != MAGIC)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device = device_of_uuid(shared.uuid);
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	pool = pool_new(device);
	pool->imported = true;
	pool->origin = shared.origin;
	*out = object_handle(pool);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
	struct shared_piece shared = {.magic = MAGIC};
	struct device *device;
	struct range *range;
	uint64_t id;

	TRY(driver_enter());
	range = memory_find(address, &device);
	if (!out || !range || !range->chunk || range->base != address ||
	    !chunk_pool(range->chunk)->origin || chunk_pool(range->chunk)->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	shared.origin = chunk_pool(range->chunk)->origin;
	shared.bytes = range->bytes;
	id = chunk_place(range->chunk, address, &shared.offset, &shared.chunk_bytes);
	driver_unlock();
	TRY(device_export(device, id, &shared.token));
	memset(out, 0, sizeof(*out));
	memcpy(out, &shared, sizeof(shared));
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
	struct shared_piece shared;
	struct device *device;
	struct pool *pool;
	uint64_t id, address = 0;
	CUresult result;

	TRY(pool_enter(handle, &pool));
	if (data)
		memcpy(&shared, data, sizeof(shared));
	if (!out || !data || !pool->imported || shared.magic != MAGIC ||
	    shared.origin != pool->origin)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device = pool->device;
	driver_unlock();
	result = device_import(device, 0, shared.token, &id);
	if (result != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	pool = object_get(handle, OBJECT_POOL);
	if (pool && device_addresses(device) && pool_grow(pool, shared.chunk_bytes, id))
		address = pool_take_at(pool, shared.offset, shared.bytes);
	driver_unlock();
	if (!address) {
		device_give_back(device, id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = address;
	return CUDA_SUCCESS;
}
