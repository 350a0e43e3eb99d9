/*
 * A CUDA driver with nothing behind it: no daemon, no card, no system calls on its paths.
 *
 * For measuring what a library in front of the driver costs, and for racing many processes through
 * it at full speed. Each process has one device of its own; addresses are numbers that nothing
 * backs; bytes are counted by atomics, so that the driver itself refuses what does not fit.
 *
 * Environment, read at cuInit:
 *   NULL_DRIVER_BYTES            size of the device; 40 GiB where absent
 *   NULL_DRIVER_LATENCY_NS       time that each allocation and free takes
 *   NULL_DRIVER_LATENCY          "sleep" to sleep it; otherwise it is spent busy
 *   NULL_DRIVER_FAIL_EVERY       every n-th allocation is refused: CUDA_ERROR_OUT_OF_MEMORY
 */
#define _GNU_SOURCE
#include "null_entry.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRANULE_BYTES 512
#define SLOTS	      (1u << 21) /* live allocations */
/* A slot's two addresses: for what fits 2 MiB, and for what is larger (each as far from the next as
 * the device is large). */
#define SMALL_BYTES   (2ull << 20)
#define SMALL_ADDRESS (1ull << 40)
#define LARGE_ADDRESS (1ull << 44)

static struct {
	bool ready, sleeps;
	uint64_t total_bytes, latency_ns, fail_every;
	uint64_t used_bytes, allocations;
	uint64_t free_slots;  /* tag << 32 | first free slot + 1: a stack */
	uint64_t fresh_slots; /* those from here on were never used */
	int large_shift;      /* large addresses are this far apart */
} device;

static struct slot {
	uint64_t bytes; /* 0: free */
	uint32_t next;	/* free slot below this one on the stack, + 1 */
} *slots;

static __thread CUcontext current;
static char primary; /* its address is the handle of the one context */

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void take_time(void)
{
	struct timespec now, span = {.tv_sec = (time_t)(device.latency_ns / 1000000000u),
				     .tv_nsec = (long)(device.latency_ns % 1000000000u)};
	uint64_t start_ns, now_ns;

	if (!device.latency_ns)
		return;
	if (device.sleeps) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	start_ns = now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	while (now_ns - start_ns < device.latency_ns) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	}
}

CUresult cuInit(unsigned int flags)
{
	const char *how = getenv("NULL_DRIVER_LATENCY");

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (device.ready)
		return CUDA_SUCCESS;
	slots = calloc(SLOTS, sizeof(*slots));
	if (!slots)
		return CUDA_ERROR_OUT_OF_MEMORY;
	device.total_bytes = number("NULL_DRIVER_BYTES", 40ull << 30);
	device.latency_ns = number("NULL_DRIVER_LATENCY_NS", 0);
	device.fail_every = number("NULL_DRIVER_FAIL_EVERY", 0);
	device.sleeps = how && strcmp(how, "sleep") == 0;
	while (device.total_bytes >> device.large_shift)
		device.large_shift++;
	if (device.large_shift > 42)
		return CUDA_ERROR_INVALID_VALUE;
	device.ready = true;
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = SIM_CUDA_VERSION;
	return CUDA_SUCCESS;
}

static const struct {
	int value;
	const char *name, *text;
} errors[] = {
#define ERROR_ROW(name, value, text) {value, #name, text},
    CUDA_ERRORS(ERROR_ROW)
#undef ERROR_ROW
};

CUresult cuGetErrorName(int error, const char **name)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		if (errors[i].value == error) {
			*name = errors[i].name;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(int error, const char **text)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		if (errors[i].value == error) {
			*text = errors[i].text;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return device.ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	*out = 0;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice ordinal)
{
	if (ordinal || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	strncpy(name, "Null GPU", (size_t)bytes);
	name[bytes - 1] = '\0';
	return CUDA_SUCCESS;
}

/* GPU-6e756c6c-0000-4000-8000-000000000000 */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	static const CUuuid fixed = {{'n', 'u', 'l', 'l', 0, 0, 0x40, 0, 0x80}};

	*uuid = fixed;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	return cuDeviceGetUuid_v2(uuid, ordinal);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	*value = attribute == 75 ? 8 : attribute == 16 ? 108 : 0;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	*bytes = device.total_bytes;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUcontext context(void)
{
	return (CUcontext)(void *)&primary;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	*out = context();
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	*out = current = context();
	return flags || ordinal ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	current = NULL;
	return handle == context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	current = handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	*out = current;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *out)
{
	*out = 0;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSynchronize(void)
{
	return CUDA_SUCCESS;
}

/* The slot that was given back last, so that what is used stays near; SLOTS where all are used. */
static uint32_t slot_take(void)
{
	uint64_t head = __atomic_load_n(&device.free_slots, __ATOMIC_ACQUIRE);

	while ((uint32_t)head) {
		uint64_t tag = (head >> 32) + 1;
		uint32_t next = __atomic_load_n(&slots[(uint32_t)head - 1].next, __ATOMIC_RELAXED);

		if (__atomic_compare_exchange_n(&device.free_slots, &head, tag << 32 | next, true,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return (uint32_t)head - 1;
	}
	if (__atomic_load_n(&device.fresh_slots, __ATOMIC_RELAXED) >= SLOTS)
		return SLOTS;
	head = __atomic_fetch_add(&device.fresh_slots, 1, __ATOMIC_RELAXED);
	return head < SLOTS ? (uint32_t)head : SLOTS;
}

static void slot_give(uint32_t slot)
{
	uint64_t head = __atomic_load_n(&device.free_slots, __ATOMIC_ACQUIRE);
	uint64_t tag;

	do {
		tag = (head >> 32) + 1;
		__atomic_store_n(&slots[slot].next, (uint32_t)head, __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(&device.free_slots, &head, tag << 32 | (slot + 1),
					      true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

/* The address of an allocation now remembered, or 0 where too many are live. */
static uint64_t remember(uint64_t bytes)
{
	uint32_t slot = slot_take();

	if (slot == SLOTS)
		return 0;
	__atomic_store_n(&slots[slot].bytes, bytes, __ATOMIC_RELEASE);
	return bytes <= SMALL_BYTES ? SMALL_ADDRESS + slot * SMALL_BYTES
				    : LARGE_ADDRESS + ((uint64_t)slot << device.large_shift);
}

/* How many bytes were at the address, which is free now; 0 where it is none of ours. */
static uint64_t forget(uint64_t address)
{
	bool large = address >= LARGE_ADDRESS;
	uint64_t offset = address - (large ? LARGE_ADDRESS : SMALL_ADDRESS);
	uint64_t stride = large ? 1ull << device.large_shift : SMALL_BYTES;
	uint64_t slot = offset / stride;
	uint64_t bytes;

	if (offset % stride || slot >= SLOTS)
		return 0;
	bytes = __atomic_load_n(&slots[slot].bytes, __ATOMIC_ACQUIRE);
	if (!bytes || (bytes > SMALL_BYTES) != large ||
	    !__atomic_compare_exchange_n(&slots[slot].bytes, &bytes, 0, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return 0;
	slot_give((uint32_t)slot);
	return bytes;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	uint64_t charged = (bytes + GRANULE_BYTES - 1) & ~(uint64_t)(GRANULE_BYTES - 1);
	uint64_t serial = __atomic_add_fetch(&device.allocations, 1, __ATOMIC_RELAXED);
	uint64_t address;

	if (!device.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	take_time();
	if (charged < bytes || (device.fail_every && serial % device.fail_every == 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (charged > device.total_bytes ||
	    __atomic_add_fetch(&device.used_bytes, charged, __ATOMIC_RELAXED) >
		device.total_bytes) {
		if (charged <= device.total_bytes)
			__atomic_sub_fetch(&device.used_bytes, charged, __ATOMIC_RELAXED);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	address = remember(charged);
	if (address) {
		*out = address;
		return CUDA_SUCCESS;
	}
	__atomic_sub_fetch(&device.used_bytes, charged, __ATOMIC_RELAXED);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	uint64_t bytes;

	if (!device.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!address)
		return CUDA_SUCCESS;
	take_time();
	bytes = forget(address);
	__atomic_sub_fetch(&device.used_bytes, bytes, __ATOMIC_RELAXED);
	return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	uint64_t used_bytes = __atomic_load_n(&device.used_bytes, __ATOMIC_RELAXED);

	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* A refused allocation is counted for a moment. */
	*free_bytes = used_bytes < device.total_bytes ? device.total_bytes - used_bytes : 0;
	*total_bytes = device.total_bytes;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **parameters, void **extra)
{
	(void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
	(void)block_z, (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static const struct {
	const char *base;
	int since;
	void (*function)(void);
} rows[] = {
#define NULL_ROW(symbol, base, since, params) {#base, since, (void (*)(void))symbol},
    NULL_ENTRIES(NULL_ROW)
#undef NULL_ROW
};

CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
			     int *status)
{
	int latest = 0;
	bool known = false;

	(void)flags;
	*function = NULL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (strcmp(rows[i].base, base) != 0)
			continue;
		known = true;
		if (rows[i].since > version || rows[i].since < latest)
			continue;
		latest = rows[i].since;
		memcpy(function, &rows[i].function, sizeof(rows[i].function));
	}
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(base, function, version, flags, NULL);
}
