/*
 * Reserved addresses and what is mapped there.
 *
 * One array has the mappings, by address. A range given to cuMemUnmap or cuMemSetAccess must
 * consist of one or more whole mappings without a gap. Before cuMemSetAccess, no device may read or
 * write mapped memory.
 */
#define _GNU_SOURCE
#include "memory/vmm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct reservation {
	uint64_t base, bytes;
	uint64_t raw_base, raw_bytes; /* the same with the bytes lost to alignment */
	const struct context *buffer; /* the context of a buffer_map; else NULL */
	struct reservation *next;
};

static struct reservation *reservations;
static struct mapping *mappings; /* by address */
static size_t mappings_used;

static struct reservation *reservation_of(uint64_t address, uint64_t bytes)
{
	for (struct reservation *at = reservations; at; at = at->next)
		if (address >= at->base && address - at->base < at->bytes &&
		    bytes <= at->bytes - (address - at->base))
			return at;
	return NULL;
}

bool vmm_reserved(uint64_t address)
{
	return reservation_of(address, 1) != NULL;
}

/* Index of the first mapping that ends after `address`. */
static size_t first_behind(uint64_t address)
{
	size_t low = 0, high = mappings_used;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct range *range = &mappings[middle].range;

		if (range->base + range->bytes > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

struct mapping *mapping_find(uint64_t address)
{
	size_t at = first_behind(address);

	return at < mappings_used && mappings[at].range.base <= address ? &mappings[at] : NULL;
}

bool vmm_accessible(uint64_t address, uint64_t bytes)
{
	struct context *context;
	uint64_t end, bit;

	if (context_current(&context) != CUDA_SUCCESS ||
	    __builtin_add_overflow(address, bytes, &end))
		return false;
	bit = 1ull << context->device->ordinal;
	for (size_t at = first_behind(address); address < end; at++) {
		const struct mapping *mapping = &mappings[at];

		if (at == mappings_used || mapping->range.base > address ||
		    !(mapping->writable & bit))
			return false;
		address = mapping->range.base + mapping->range.bytes;
	}
	return true;
}

/* Returns how many mappings make up the range exactly, and the index of the first; 0: none. */
static size_t whole_mappings(uint64_t address, uint64_t bytes, size_t *first)
{
	size_t at = *first = first_behind(address);
	uint64_t end = address + bytes;

	while (at < mappings_used && mappings[at].range.base == address && address < end)
		address += mappings[at++].range.bytes;
	return bytes && address == end ? at - *first : 0;
}

static struct reservation *reserve(uint64_t bytes, uint64_t aligned, uint64_t hint)
{
	struct reservation *reserved;
	char *raw = MAP_FAILED;

	if (bytes <= UINT64_MAX - aligned)
		raw = mmap((void *)(uintptr_t)hint, bytes + aligned, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (raw == MAP_FAILED)
		return NULL;
	madvise(raw, bytes + aligned, MADV_DONTFORK);
	reserved = must(calloc(1, sizeof(*reserved)));
	reserved->raw_base = (uint64_t)(uintptr_t)raw;
	reserved->raw_bytes = bytes + aligned;
	reserved->base = (reserved->raw_base + aligned - 1) & ~(aligned - 1);
	reserved->bytes = bytes;
	reserved->next = reservations;
	reservations = reserved;
	return reserved;
}

static void unreserve(struct reservation **link)
{
	struct reservation *gone = *link;

	*link = gone->next;
	munmap((void *)(uintptr_t)gone->raw_base, gone->raw_bytes);
	free(gone);
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	struct reservation *reserved;
	uint64_t aligned;

	TRY(driver_enter());
	aligned = alignment < vmm_granule() ? vmm_granule() : alignment;
	if (!out || !bytes || bytes % vmm_granule() || aligned & (aligned - 1) || flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	reserved = reserve(bytes, aligned, hint);
	if (!reserved)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*out = reserved->base;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	struct reservation **link = &reservations;
	size_t at;

	TRY(driver_enter());
	while (*link && ((*link)->base != address || (*link)->bytes != bytes || (*link)->buffer))
		link = &(*link)->next;
	at = first_behind(address);
	if (!*link || (at < mappings_used && mappings[at].range.base - address < bytes))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	unreserve(link);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult map(const struct mapping *wanted)
{
	size_t at = first_behind(wanted->range.base);

	if (!reservation_of(wanted->range.base, wanted->range.bytes) ||
	    (at < mappings_used &&
	     mappings[at].range.base < wanted->range.base + wanted->range.bytes))
		return CUDA_ERROR_INVALID_VALUE;
	mappings = grow(mappings, mappings_used, sizeof(*mappings));
	memmove(mappings + at + 1, mappings + at, (mappings_used - at) * sizeof(*mappings));
	mappings[at] = *wanted;
	mappings_used++;
	physical_pin(wanted->memory);
	return CUDA_SUCCESS;
}

/* Only offset 0 is accepted, as by real drivers so far. */
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct mapping wanted = {.range = {.base = address, .bytes = bytes}};

	TRY(driver_enter());
	wanted.memory = physical_get(handle);
	if (!wanted.memory || !bytes || flags || offset || (address | bytes) % vmm_granule() ||
	    bytes > wanted.memory->bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	wanted.range.id = wanted.memory->id;
	return driver_leave(map(&wanted));
}

/* Removes mappings. Their addresses stay reserved. */
static void unmap(size_t first, size_t count)
{
	uint64_t base = mappings[first].range.base;
	const struct range *last = &mappings[first + count - 1].range;
	uint64_t bytes = last->base + last->bytes - base;

	madvise((void *)(uintptr_t)base, bytes, MADV_DONTNEED);
	for (size_t i = first; i < first + count; i++)
		physical_unpin(mappings[i].memory);
	mappings_used -= count;
	memmove(mappings + first, mappings + first + count,
		(mappings_used - first) * sizeof(*mappings));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	size_t first, count;

	TRY(driver_enter());
	count = whole_mappings(address, bytes, &first);
	if (!count || reservation_of(address, 1)->buffer)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	unmap(first, count);
	return physical_leave(CUDA_SUCCESS);
}

CUresult buffer_map(struct context *context, struct physical *memory, uint64_t offset,
		    uint64_t bytes, uint64_t *address)
{
	struct mapping wanted = {.memory = memory, .writable = UINT64_MAX};
	uint64_t first = offset & ~(uint64_t)4095,
		 whole = (bytes + offset - first + 4095) & ~(uint64_t)4095;
	struct reservation *reserved = reserve(whole, vmm_granule(), 0);
	CUresult result;

	if (!reserved)
		return CUDA_ERROR_OUT_OF_MEMORY;
	reserved->buffer = context;
	wanted.range = (struct range){.base = reserved->base, .bytes = whole, .id = memory->id};
	*address = reserved->base + offset - first;
	result = map(&wanted);
	if (result != CUDA_SUCCESS)
		unreserve(&reservations); /* the new reservation is the first */
	return result;
}

bool buffer_unmap(uint64_t address)
{
	struct reservation **link = &reservations;
	size_t at = first_behind(address);

	while (*link && ((*link)->base > address || address - (*link)->base >= 4096))
		link = &(*link)->next;
	if (!*link || !(*link)->buffer)
		return false;
	unmap(at, 1);
	unreserve(link);
	return true;
}

void buffers_forget(const struct context *context)
{
	struct reservation *next;

	for (struct reservation *at = reservations; at; at = next) {
		next = at->next;
		if (at->buffer == context)
			buffer_unmap(at->base);
	}
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
			size_t accesses)
{
	size_t first, count;
	struct device *device;

	TRY(driver_enter());
	count = whole_mappings(address, bytes, &first);
	if (!count || !access || !accesses)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < accesses; i++) {
		TRY_LOCKED(location_device(&access[i].location, &device));
		if (access[i].flags & ~3u || access[i].flags == 2)
			return driver_leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (size_t i = 0; i < accesses; i++)
		for (size_t at = first; at < first + count; at++) {
			uint64_t bit = 1ull << access[i].location.id;

			if (access[i].flags == CU_MEM_ACCESS_READWRITE)
				mappings[at].writable |= bit;
			else
				mappings[at].writable &= ~bit;
		}
	return driver_leave(CUDA_SUCCESS);
}
