/* Physical allocations: see vmm.h. */
#include "memory/vmm.h"

#include <stdlib.h>
#include <unistd.h>

static struct physical *freed;

struct physical *physical_new(uint64_t bytes)
{
	struct physical *memory = object_new(OBJECT_PHYSICAL, sizeof(*memory));

	memory->bytes = bytes;
	memory->fd = -1;
	memory->handles = 1;
	return memory;
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
	if (memory->fd >= 0)
		close(memory->fd);
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

static void delete(struct physical *list)
{
	while (list) {
		struct physical *memory = list;

		list = memory->next_freed;
		if (memory->device)
			(void)device_give_back(memory->device, memory->id);
		free(memory);
	}
}

static struct physical *take_freed(void)
{
	struct physical *list = freed;

	freed = NULL;
	return list;
}

CUresult physical_leave(CUresult result)
{
	struct physical *list = take_freed();

	driver_unlock();
	delete(list);
	return result;
}

void physical_delete_released(void)
{
	delete(take_freed());
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
	CUresult result;

	TRY(driver_enter());
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

	TRY(driver_enter());
	if (!out || !prop || !bytes || flags || bytes % vmm_granule())
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	TRY_LOCKED(check_prop(prop, &device));
	driver_unlock();
	if (device)
		TRY(device_take(device, 0, bytes, &id));
	driver_lock();
	memory = physical_new(bytes);
	memory->device = device;
	memory->id = id;
	memory->prop = *prop;
	*out = physical_handle(memory);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *memory;

	TRY(driver_enter());
	memory = physical_get(handle);
	if (!memory)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	physical_release(memory);
	return physical_leave(CUDA_SUCCESS);
}

/* Returns the handle that mapped the memory, even if the program has released the handle. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	struct mapping *mapping;

	TRY(driver_enter());
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

	TRY(driver_enter());
	memory = physical_get(handle);
	if (!prop || !memory || memory->multicast)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*prop = memory->prop;
	return driver_leave(CUDA_SUCCESS);
}
