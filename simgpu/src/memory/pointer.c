/*
 * Queries of an address: device memory, host memory that the driver allocated, or unknown.
 */
#include "memory/pool.h"
#include "memory/vmm.h"

#include <string.h>

/* X(number, name, bytes, value): an attribute, and the size and value of its answer. */
#define ATTRIBUTES(X)                                                                              \
	X(1, CONTEXT, 8, (uintptr_t)place->context)                                                \
	X(2, MEMORY_TYPE, 4, place->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE)              \
	X(3, DEVICE_POINTER, 8, place->address)                                                    \
	X(4, HOST_POINTER, 8, place->address)                                                      \
	X(6, SYNC_MEMOPS, 4, 0)                                                                    \
	X(7, BUFFER_ID, 8, place->buffer)                                                          \
	X(8, IS_MANAGED, 4, place->managed)                                                        \
	X(9, DEVICE_ORDINAL, 4, (uint64_t)place->ordinal)                                          \
	X(10, IS_LEGACY_IPC_CAPABLE, 4, 0)                                                         \
	X(11, RANGE_START, 8, place->base)                                                         \
	X(12, RANGE_SIZE, 8, place->bytes)                                                         \
	X(13, MAPPED, 4, 1)                                                                        \
	X(14, ALLOWED_HANDLE_TYPES, 8, place->handle_types)                                        \
	X(15, IS_GPU_DIRECT_CAPABLE, 4, 0)                                                         \
	X(16, ACCESS_FLAGS, 4, 3)                                                                  \
	X(17, MEMPOOL_HANDLE, 8, (uintptr_t)place->pool)

enum {
#define X(number, name, bytes, value) ATTRIBUTE_##name = number,
	ATTRIBUTES(X)
#undef X
	    ATTRIBUTE_LAST_KNOWN = 21, /* attributes 18 to 21 are not simulated */
};

static const unsigned char value_bytes[ATTRIBUTE_LAST_KNOWN + 1] = {
#define X(number, name, bytes, value) [number] = bytes,
    ATTRIBUTES(X)
#undef X
};

/* What the attributes tell of an address. Unknown addresses have zeros and ordinal -2. */
struct place {
	bool known, host, managed;
	uint64_t address, base, bytes, buffer;
	int ordinal;
	CUcontext context;
	CUmemoryPool pool;
	uint64_t handle_types;
};

static struct place find(uint64_t address)
{
	struct place place = {.address = address, .ordinal = -2};
	struct device *device;
	struct range *range = memory_find(address, &device);
	struct mapping *mapping = mapping_find(address);
	struct context *context;
	void *base;
	size_t bytes;
	uint32_t at = 0;

	if (range) {
		place.known = true;
		place.managed = range->managed;
		place.base = range->base;
		place.bytes = range->bytes;
		place.buffer = range->id;
		place.ordinal = device->ordinal;
		if (range->chunk)
			place.pool = object_handle(chunk_pool(range->chunk));
		while ((context = object_next(OBJECT_CONTEXT, &at)))
			if (context->object.serial == range->context)
				place.context = object_handle(context);
	} else if (mapping) {
		const struct physical *memory = mapping->memory;

		place.known = true;
		place.host = location_is_host(&memory->prop.location);
		place.base = mapping->range.base;
		place.bytes = mapping->range.bytes;
		place.buffer = memory->object.serial;
		place.ordinal = memory->device ? memory->device->ordinal : -1;
		place.handle_types = (uint64_t)memory->prop.requestedHandleTypes;
	} else if (host_find((void *)(uintptr_t)address, &base, &bytes)) {
		place.known = place.host = true;
		place.base = (uint64_t)(uintptr_t)base;
		place.bytes = bytes;
		place.buffer = place.base;
		place.ordinal = 0;
	}
	return place;
}

static CUresult answer(const struct place *place, int attribute, void *out)
{
	const uint64_t values[] = {
#define X(number, name, bytes, value) [number] = value,
	    ATTRIBUTES(X)
#undef X
	};

	if (!place->known || (attribute == ATTRIBUTE_CONTEXT && place->host) ||
	    (attribute == ATTRIBUTE_HOST_POINTER && !place->host && !place->managed))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(out, &values[attribute], value_bytes[attribute]);
	return CUDA_SUCCESS;
}

static CUresult check(int attribute)
{
	if (attribute < ATTRIBUTE_CONTEXT || attribute > ATTRIBUTE_LAST_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	return value_bytes[attribute] ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
	struct place place;

	TRY(driver_enter());
	TRY_LOCKED(out ? check(attribute) : CUDA_ERROR_INVALID_VALUE);
	place = find(address);
	return driver_leave(answer(&place, attribute, out));
}

/* As documented, this succeeds for an unknown address too, and returns zeros. */
CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **outs,
				CUdeviceptr address)
{
	struct place place;

	TRY(driver_enter());
	if (!count || !attributes || !outs)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (unsigned int i = 0; i < count; i++)
		TRY_LOCKED(outs[i] ? check(attributes[i]) : CUDA_ERROR_INVALID_VALUE);
	place = find(address);
	for (unsigned int i = 0; i < count; i++) {
		memset(outs[i], 0, value_bytes[attributes[i]]);
		answer(&place, attributes[i], outs[i]);
		if (!place.known && attributes[i] == ATTRIBUTE_DEVICE_ORDINAL)
			memcpy(outs[i], &place.ordinal, sizeof(place.ordinal));
	}
	return driver_leave(CUDA_SUCCESS);
}
