/*
 * Multicast objects: which devices belong to each, and which memory of a device is bound to it.
 *
 * This is bookkeeping only. A write to a mapped multicast object does not reach the bound memory.
 * Bound memory is held until it is unbound or the object ends.
 */
#include "memory/vmm.h"

#include <stdlib.h>

struct binding {
	struct physical *multicast, *memory;
	uint64_t offset, bytes;
	struct binding *next;
};

static struct binding *bindings;

static struct physical *multicast_get(CUmemGenericAllocationHandle handle)
{
	struct physical *object = physical_get(handle);

	return object && object->multicast ? object : NULL;
}

static CUresult check_prop(const CUmulticastObjectProp *prop)
{
	return !prop || prop->numDevices < 1 || prop->numDevices > (unsigned int)driver.devices ||
		       !prop->size || prop->flags || prop->handleTypes & ~SHAREABLE_TYPES
		   ? CUDA_ERROR_INVALID_VALUE
		   : CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
	struct physical *object;
	CUresult result;

	TRY(driver_enter());
	result = out ? check_prop(prop) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && prop->size % vmm_granule())
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	object = physical_new(prop->size);
	object->multicast = true;
	object->multicast_prop = *prop;
	*out = physical_handle(object);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	struct physical *object;
	struct device *device;

	TRY(driver_enter());
	object = multicast_get(handle);
	TRY_LOCKED(object ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE);
	if (object->devices >> ordinal & 1 ||
	    __builtin_popcountll(object->devices) == (int)object->multicast_prop.numDevices)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	object->devices |= 1ull << ordinal;
	return driver_leave(CUDA_SUCCESS);
}

static bool complete(const struct physical *object)
{
	return __builtin_popcountll(object->devices) == (int)object->multicast_prop.numDevices;
}

/* Returns true if no memory of that device is bound in that area yet. */
static bool vacant(const struct physical *object, const struct device *device, uint64_t offset,
		   uint64_t bytes)
{
	for (const struct binding *at = bindings; at; at = at->next)
		if (at->multicast == object && at->memory->device == device &&
		    offset < at->offset + at->bytes && at->offset < offset + bytes)
			return false;
	return true;
}

static CUresult bind(struct physical *object, struct physical *memory, uint64_t offset,
		     uint64_t bytes)
{
	const struct device *device = memory->device;
	struct binding *binding;

	if (!device || !(object->devices >> device->ordinal & 1) || !complete(object))
		return CUDA_ERROR_INVALID_VALUE;
	if (!bytes || (offset | bytes) % vmm_granule() || bytes > object->bytes ||
	    offset > object->bytes - bytes || !vacant(object, device, offset, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	binding = must(malloc(sizeof(*binding)));
	*binding = (struct binding){object, memory, offset, bytes, bindings};
	bindings = binding;
	physical_pin(memory);
	return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
			    CUmemGenericAllocationHandle memory_handle, size_t memory_offset,
			    size_t bytes, unsigned long long flags)
{
	struct physical *object, *memory;

	TRY(driver_enter());
	object = multicast_get(handle);
	memory = physical_get(memory_handle);
	if (!object || !memory || flags || memory_offset % vmm_granule() || bytes > memory->bytes ||
	    memory_offset > memory->bytes - bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(bind(object, memory, offset, bytes));
}

/* The bound addresses must lie in one mapping. */
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
			     CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	struct physical *object;
	struct mapping *mapping;

	TRY(driver_enter());
	object = multicast_get(handle);
	mapping = mapping_find(address);
	if (!object || !mapping || flags ||
	    bytes > mapping->range.bytes - (address - mapping->range.base))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(bind(object, mapping->memory, offset, bytes));
}

/* Unbinds the binding with that device and area, or if the device is NULL, all bindings. */
static bool unbind(const struct physical *object, const struct device *device, uint64_t offset,
		   uint64_t bytes)
{
	bool any = false;

	for (struct binding **at = &bindings; *at;) {
		struct binding *gone = *at;

		if (gone->multicast != object ||
		    (device && (gone->memory->device != device || gone->offset != offset ||
				gone->bytes != bytes))) {
			at = &gone->next;
			continue;
		}
		*at = gone->next;
		physical_unpin(gone->memory);
		free(gone);
		any = true;
	}
	return any;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
			   size_t bytes)
{
	struct physical *object;
	struct device *device;

	TRY(driver_enter());
	object = multicast_get(handle);
	TRY_LOCKED(object ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE);
	return physical_leave(unbind(object, device, offset, bytes) ? CUDA_SUCCESS
								    : CUDA_ERROR_INVALID_VALUE);
}

void bindings_forget(const struct physical *multicast)
{
	unbind(multicast, NULL, 0, 0);
}
