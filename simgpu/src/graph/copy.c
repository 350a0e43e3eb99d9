/*
 * Copies and fills. A device address is checked for all its bytes, a host address is not.
 *
 * Data moves when the work is submitted. The GPU is busy as long as its copy rate requires. A
 * synchronous copy waits for its stream before and after.
 */
#include "graph/graph.h"
#include "memory/vmm.h"

#include <string.h>

enum side {
	SIDE_ANY,    /* host or device memory */
	SIDE_DEVICE, /* or pinned */
};

struct transfer {
	uint64_t to, from;
	enum side to_side, from_side;
	size_t bytes;
	unsigned int value_bytes; /* 0: a copy; else the bytes of `value` that a fill repeats */
	uint32_t value;
};

static bool span_is_good(uint64_t address, uint64_t bytes, enum side side)
{
	struct device *device;
	struct range *range = memory_find(address, &device);
	void *base;
	size_t whole;

	if (range)
		return bytes <= range->bytes - (address - range->base);
	if (vmm_reserved(address))
		return vmm_accessible(address, bytes);
	if (side == SIDE_DEVICE) /* Pinned host memory also has a device address. */
		return host_find((void *)(uintptr_t)address, &base, &whole) &&
		       bytes <= whole - (address - (uintptr_t)base);
	for (int i = 0; i < driver.devices; i++)
		if (arena_holds(&driver.device[i].arena, address) ||
		    arena_holds(&driver.device[i].low, address))
			return false;
	return address != 0;
}

static bool is_good(const struct transfer *transfer)
{
	return !transfer->bytes ||
	       (span_is_good(transfer->to, transfer->bytes, transfer->to_side) &&
		(transfer->value_bytes ||
		 span_is_good(transfer->from, transfer->bytes, transfer->from_side)));
}

static void move(const struct transfer *transfer)
{
	char *to = (char *)(uintptr_t)transfer->to;

	if (!transfer->value_bytes)
		memmove(to, (const void *)(uintptr_t)transfer->from, transfer->bytes);
	else if (transfer->value_bytes == 1)
		memset(to, (int)transfer->value, transfer->bytes);
	else
		for (size_t at = 0; at < transfer->bytes; at += transfer->value_bytes)
			memcpy(to + at, &transfer->value, transfer->value_bytes);
}

static uint64_t duration_ns(const struct transfer *transfer, const struct stream *stream)
{
	const struct sim_shared *shared = sim_link_shared(stream->context->device->link);
	uint64_t rate = shared->board.copy_bytes_per_s;

	return rate ? (uint64_t)((double)transfer->bytes * 1e9 / (double)rate) : 0;
}

/* A captured copy never moves data, not even when its graph is launched. */
static CUresult submit(const struct transfer *transfer, CUstream handle)
{
	struct work work = {0};
	struct stream *stream;
	bool captured;
	CUresult result;

	TRY(stream_enter(handle, &stream));
	if (!is_good(transfer))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	work.duration_ns = duration_ns(transfer, stream);
	captured = stream->capture;
	driver_unlock();
	result = work_submit(
	    &work, transfer->value_bytes ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_MEMCPY,
	    handle);
	if (result == CUDA_SUCCESS && !captured && transfer->bytes)
		move(transfer);
	return result;
}

/* Waits for the legacy stream's work so far. Returns CUDA_SUCCESS if the GPU still answers. */
static CUresult wait_for_legacy(void)
{
	struct device *device;
	struct mark pending;

	TRY(stream_pending(NULL, &pending, &device));
	mark_wait(&pending);
	return device_alive(device->link);
}

static CUresult submit_and_wait(const struct transfer *transfer)
{
	TRY(wait_for_legacy());
	TRY(submit(transfer, NULL));
	return wait_for_legacy();
}

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

/* Defines a synchronous and an asynchronous copy between two kinds of memory. */
#define COPY(synchronous, asynchronous, to_type, to_where, from_type, from_where)                  \
	CUresult synchronous(to_type to, from_type from, size_t bytes)                             \
	{                                                                                          \
		return submit_and_wait(&(struct transfer){ADDRESS(to), ADDRESS(from), to_where,    \
							  from_where, bytes, 0, 0});               \
	}                                                                                          \
	CUresult asynchronous(to_type to, from_type from, size_t bytes, CUstream stream)           \
	{                                                                                          \
		return submit(&(struct transfer){ADDRESS(to), ADDRESS(from), to_where, from_where, \
						 bytes, 0, 0},                                     \
			      stream);                                                             \
	}

COPY(cuMemcpy, cuMemcpyAsync, CUdeviceptr, SIDE_ANY, CUdeviceptr, SIDE_ANY)
COPY(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, SIDE_DEVICE, const void *, SIDE_ANY)
COPY(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void *, SIDE_ANY, CUdeviceptr, SIDE_DEVICE)
COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, CUdeviceptr, SIDE_DEVICE, CUdeviceptr, SIDE_DEVICE)

static CUresult fill(CUdeviceptr to, uint32_t value, unsigned int bytes, size_t count,
		     CUstream stream)
{
	struct transfer transfer = {
	    .to = to, .to_side = SIDE_DEVICE, .value_bytes = bytes, .value = value};

	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (to % bytes || __builtin_mul_overflow(count, bytes, &transfer.bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return submit(&transfer, stream);
}

#define FILL(bits, type)                                                                           \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
	{                                                                                          \
		return fill(to, value, bits / 8, count, NULL);                                     \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                                          \
		return fill(to, value, bits / 8, count, stream);                                   \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
