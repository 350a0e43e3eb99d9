/*
 * Physical allocations: see vmm.h.
 *
 * Those that may be exported have a memory file each; all others share one, at offsets that are
 * never used twice, so that a program may have more of them than file descriptors.
 */
#define _GNU_SOURCE
#include "memory/vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COMMON_FILE_BYTES (1ull << 60)

static struct physical *freed;

/* glibc has had a name for it since 2.27 only. */
static int memory_file(const char *name)
{
	return (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
}

static int common_file(void)
{
	static int fd = -1;

	if (fd >= 0)
		return fd;
	fd = memory_file("simgpu");
	if (fd >= 0 && ftruncate(fd, (off_t)COMMON_FILE_BYTES) != 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static bool give_file(struct physical *memory)
{
	static uint64_t next_offset;

	if (!memory->own_file) {
		memory->fd = common_file();
		memory->offset = next_offset;
		next_offset += memory->bytes;
		return memory->fd >= 0;
	}
	memory->fd = memory_file("simgpu-shared");
	/* The page after the data identifies the file: see share.c. */
	if (memory->fd >= 0 && ftruncate(memory->fd, (off_t)(memory->bytes + SHARE_PAGE)) == 0)
		return true;
	if (memory->fd >= 0)
		close(memory->fd);
	return false;
}

static void take_file(const struct physical *memory)
{
	if (memory->own_file)
		close(memory->fd);
	else
		(void)fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)memory->offset, (off_t)memory->bytes);
}

struct physical *physical_new(uint64_t bytes, bool own_file)
{
	struct physical *memory = object_new(OBJECT_PHYSICAL, sizeof(*memory));

	if (!memory)
		return NULL;
	memory->bytes = bytes;
	memory->own_file = own_file;
	memory->handles = 1;
	if (give_file(memory))
		return memory;
	object_free(memory);
	return NULL;
}

CUmemGenericAllocationHandle physical_handle(const struct physical *memory)
{
	return (CUmemGenericAllocationHandle)(uintptr_t)object_handle(memory);
}

struct physical *physical_get(CUmemGenericAllocationHandle handle)
{
	struct physical *memory = object_get((void *)(uintptr_t)handle, OBJECT_PHYSICAL);

	return memory && memory->handles ? memory : NULL;
}

static void delete_if_unused(struct physical *memory)
{
	if (memory->handles || memory->pins)
		return;
	take_file(memory);
	if (memory->multicast)
		bindings_forget(memory);
	memory->next_freed = freed;
	freed = memory;
	object_unlink(memory);
}

void physical_pin(struct physical *memory)
{
	memory->pins++;
}

void physical_unpin(struct physical *memory)
{
	memory->pins--;
	delete_if_unused(memory);
}

void physical_release(struct physical *memory)
{
	memory->handles--;
	delete_if_unused(memory);
}

static void delete_listed(struct physical *list)
{
	while (list) {
		struct physical *memory = list;

		list = memory->next_freed;
		if (memory->device)
			(void)device_give_back(memory->device, memory->id);
		free(memory);
	}
}

CUresult physical_leave(CUresult result)
{
	struct physical *list = freed;

	freed = NULL;
	driver_unlock();
	delete_listed(list);
	return result;
}

void physical_delete_released(void)
{
	struct physical *list = freed;

	freed = NULL;
	delete_listed(list);
}

bool location_is_host(const CUmemLocation *location)
{
	return location->type >= CU_MEM_LOCATION_TYPE_HOST &&
	       location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult location_device(const CUmemLocation *location, struct device **device)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? device_get(location->id, device)
							     : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_prop(const CUmemAllocationProp *prop, struct device **device)
{
	*device = NULL;
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->requestedHandleTypes & ~SHAREABLE_TYPES)
		return CUDA_ERROR_INVALID_VALUE;
	if (!location_is_host(&prop->location))
		return location_device(&prop->location, device);
	if (prop->requestedHandleTypes && prop->location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
		return CUDA_ERROR_INVALID_VALUE;
	return prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && prop->location.id
		   ? CUDA_ERROR_INVALID_VALUE
		   : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option)
{
	struct device *device;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes || !prop || option < 0 || option > 1)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = check_prop(prop, &device);
	if (result == CUDA_SUCCESS)
		*bytes = driver.device[0].gpu->granule_bytes;
	return driver_leave(result);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct physical *memory;
	struct device *device;
	uint64_t id = 0;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result =
	    out && prop && bytes && !flags ? check_prop(prop, &device) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && bytes % vmm_granule())
		result = CUDA_ERROR_INVALID_VALUE;
	driver_unlock();
	if (result == CUDA_SUCCESS && device)
		result = device_take(device, 0, bytes, &id);
	if (result != CUDA_SUCCESS)
		return result;
	driver_lock();
	memory = physical_new(bytes, prop->requestedHandleTypes != 0);
	if (memory) {
		memory->device = device;
		memory->id = id;
		memory->prop = *prop;
		*out = physical_handle(memory);
		return driver_leave(CUDA_SUCCESS);
	}
	driver_unlock();
	if (device)
		(void)device_give_back(device, id);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *memory;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	memory = physical_get(handle);
	if (!memory)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	physical_release(memory);
	return physical_leave(CUDA_SUCCESS);
}

/* The same value as was used to map the memory, even if that has been released meanwhile. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	struct mapping *mapping;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	mapping = mapping_find((uint64_t)(uintptr_t)address);
	if (!out || !mapping)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	mapping->memory->handles++;
	*out = physical_handle(mapping->memory);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	struct physical *memory;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	memory = physical_get(handle);
	if (!prop || !memory || memory->multicast)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*prop = memory->prop;
	return driver_leave(CUDA_SUCCESS);
}
