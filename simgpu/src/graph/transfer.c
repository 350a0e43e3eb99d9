/*
 * See transfer.h. Device addresses are checked to their last byte; host addresses are not.
 */
#include "graph/transfer.h"

#include <string.h>

#include "graph/graph.h"
#include "memory/vmm.h"

static bool reserved(const struct arena *arena, uint64_t address)
{
	return arena->base && address >= arena->base &&
	       (address - arena->base) >> 21 < arena->blocks;
}

static bool span_is_good(uint64_t address, uint64_t bytes, enum side side)
{
	struct device *device;
	struct range *range = memory_find(address, &device);

	if (range)
		return bytes <= range->bytes - (address - range->base);
	if (vmm_reserved(address))
		return vmm_accessible(address, bytes);
	if (side == SIDE_DEVICE) {
		void *base;
		size_t whole;

		/* Pinned host memory is a device address too. */
		return host_find((void *)(uintptr_t)address, &base, &whole) &&
		       bytes <= whole - (address - (uintptr_t)base);
	}
	for (int i = 0; i < driver.devices; i++)
		if (reserved(&driver.device[i].arena, address) ||
		    reserved(&driver.device[i].low, address))
			return false;
	return address != 0;
}

/* From the first byte of the first row to the last of the last; false if that exceeds the address
 * space. There is at least one byte. */
static bool extent(const struct place *place, const struct transfer *transfer, uint64_t *bytes)
{
	uint64_t rows;

	return !__builtin_mul_overflow(transfer->height - 1, place->pitch, &rows) &&
	       !__builtin_add_overflow(rows, transfer->width, bytes);
}

static CUresult check_place(const struct place *place, const struct transfer *transfer)
{
	uint64_t bytes;

	return extent(place, transfer, &bytes) && span_is_good(place->address, bytes, place->side)
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check(const struct transfer *transfer)
{
	CUresult result;

	if (!transfer->width || !transfer->height)
		return CUDA_SUCCESS;
	result = check_place(&transfer->to, transfer);
	if (result == CUDA_SUCCESS && !transfer->value_bytes)
		result = check_place(&transfer->from, transfer);
	return result;
}

static void fill_row(char *at, const struct transfer *transfer)
{
	if (transfer->value_bytes == 1)
		memset(at, (int)transfer->value, transfer->width);
	for (size_t x = 0; transfer->value_bytes > 1 && x < transfer->width;
	     x += transfer->value_bytes)
		memcpy(at + x, &transfer->value, transfer->value_bytes);
}

static void move(const struct transfer *transfer)
{
	for (size_t y = 0; transfer->width && y < transfer->height; y++) {
		char *to = (char *)(uintptr_t)(transfer->to.address + y * transfer->to.pitch);
		uint64_t from = transfer->from.address + y * transfer->from.pitch;

		if (transfer->value_bytes)
			fill_row(to, transfer);
		else
			memmove(to, (const void *)(uintptr_t)from, transfer->width);
	}
}

static CUresult capture(const struct transfer *transfer, struct stream *stream)
{
	struct node *node = capture_add(stream, transfer->value_bytes ? CU_GRAPH_NODE_TYPE_MEMSET
								      : CU_GRAPH_NODE_TYPE_MEMCPY);

	if (!node)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	node->work.transfer = *transfer;
	return CUDA_SUCCESS;
}

/* Takes the lock with the stream, and with what is checked. */
static CUresult begin(const struct transfer *transfer, CUstream handle, struct stream **stream)
{
	CUresult result = stream_enter(handle, stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = check(transfer);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

/* How long it takes on the GPU. */
static uint64_t duration_ns(const struct transfer *transfer, const struct stream *stream)
{
	const struct sim_shared *shared = sim_link_shared(stream->context->device->link);
	const double bytes = (double)transfer->width * (double)transfer->height;
	uint64_t rate = shared->board.copy_bytes_per_s;

	return rate ? (uint64_t)(bytes * 1e9 / (double)rate) : 0;
}

/* With the lock. */
static CUresult occupy(const struct transfer *transfer, struct stream *stream, struct mark *room)
{
	uint64_t takes_ns = duration_ns(transfer, stream);

	return takes_ns ? stream_occupy(stream, takes_ns, room) : CUDA_SUCCESS;
}

CUresult transfer_submit(const struct transfer *transfer, CUstream handle)
{
	struct stream *stream;
	struct mark room;
	CUresult result;

	while ((result = begin(transfer, handle, &stream)) == CUDA_SUCCESS) {
		if (stream->capture)
			return driver_leave(capture(transfer, stream));
		result = occupy(transfer, stream, &room);
		driver_unlock();
		if (result != CUDA_ERROR_NOT_READY)
			break;
		mark_wait(&room);
	}
	if (result == CUDA_SUCCESS)
		move(transfer);
	return result;
}

/* Waits for the legacy stream's work so far; true if the GPU still answers. */
static CUresult wait_for_legacy(const struct transfer *transfer)
{
	struct stream *stream;
	struct sim_link *link;
	struct mark ready;
	CUresult result = begin(transfer, NULL, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = capture_allows_on(stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	ready = stream_ready(stream);
	link = stream->context->device->link;
	driver_unlock();
	work_wait(&ready);
	return device_alive(link);
}

CUresult transfer_wait(const struct transfer *transfer)
{
	static const struct transfer nothing;
	CUresult result = wait_for_legacy(transfer);

	if (result == CUDA_SUCCESS)
		result = transfer_submit(transfer, NULL);
	return result == CUDA_SUCCESS ? wait_for_legacy(&nothing) : result;
}
