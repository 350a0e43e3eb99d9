/*
 * Stream-ordered memory: a call takes it from a pool at once. It is free when the stream reaches
 * the free operation. If the GPU has no memory for another chunk, the device's pools are trimmed,
 * and the request is repeated once.
 */
#include "graph/graph.h"
#include "memory/leaving.h"
#include "memory/pool.h"

/* Requests a chunk from the GPU. The caller does not hold the lock. */
static CUresult reserve_or_trim(struct device *device, uint64_t bytes, uint64_t *id)
{
	CUresult result = device_take(device, 0, bytes, id);
	struct chunk *gone = NULL;
	struct pool *pool;
	uint32_t at = 0;

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	driver_lock();
	while ((pool = object_next(OBJECT_POOL, &at)))
		if (pool->device == device)
			pool_trim(pool, 0, &gone);
	driver_unlock();
	if (!gone)
		return result;
	chunks_give_back(gone);
	return device_take(device, 0, bytes, id);
}

/* Releases the caller's lock. The pool may be destroyed during the request. */
static CUresult grow_and_take(struct pool *pool, uint64_t bytes, uint64_t stream, CUdeviceptr *out)
{
	CUmemoryPool handle = object_handle(pool);
	struct device *device = pool->device;
	uint64_t grown_bytes = pool_growth_bytes(bytes);
	uint64_t id;
	CUresult result = CUDA_SUCCESS;

	if (pool->max_bytes && pool->reserved_bytes + grown_bytes > pool->max_bytes)
		grown_bytes = (bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
	if (pool->max_bytes && pool->reserved_bytes + grown_bytes > pool->max_bytes)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	driver_unlock();
	TRY(reserve_or_trim(device, grown_bytes, &id));
	driver_lock();
	pool = object_get(handle, OBJECT_POOL);
	if (!pool || pool->destroyed)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!device_addresses(device) || !pool_grow(pool, grown_bytes, id))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		*out = pool_take(pool, bytes, stream);
		return driver_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
	}
	driver_unlock();
	device_give_back(device, id);
	return result;
}

/* An allocation in a capture belongs to the graph and takes nothing from a pool. */
static CUresult capture_alloc(struct stream *stream, struct device *device, uint64_t bytes,
			      CUdeviceptr *out)
{
	struct graph *graph = capture_graph(stream);
	struct node *node;
	CUresult result = graph ? graph_add_alloc(graph, device, bytes, &node)
				: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

	if (result == CUDA_SUCCESS)
		*out = node->memory->range->base;
	return result;
}

static CUresult capture_free(struct stream *stream, uint64_t address)
{
	struct graph *graph = capture_graph(stream);
	struct node *node;

	return graph ? graph_add_free(graph, address, &node)
		     : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* Allocates from the pool `handle` if `named`, else from the stream's device's current pool. */
static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, bool named,
			 CUstream stream_handle)
{
	struct stream *stream;
	struct device *device;
	struct pool *pool = NULL;
	uint64_t address;

	TRY(stream_enter(stream_handle, &stream));
	if (!out || !bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device = stream->context->device;
	if (named)
		pool = object_get(handle, OBJECT_POOL);
	else
		pool = device->current_pool ? device->current_pool : pool_default(device);
	if (!pool || pool->destroyed || pool->imported)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (bytes > pool->device->gpu->memory_bytes)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (stream->capture)
		return driver_leave(capture_alloc(stream, pool->device, bytes, out));
	address = pool_take(pool, bytes, stream_serial(stream));
	if (!address)
		return grow_and_take(pool, bytes, stream_serial(stream), out);
	*out = address;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return allocate(out, bytes, NULL, false, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return allocate(out, bytes, pool, true, stream);
}

/* Frees memory of cuMemAlloc once the stream has reached the free operation. Releases the caller's
 * lock. */
static CUresult free_plain(struct device *device, struct range *range, const struct mark *ready)
{
	uint64_t address = range->base;

	if (!range->imported && !mark_is_reached(ready)) {
		leaving_add(device, range, ready);
		return driver_leave(CUDA_SUCCESS);
	}
	driver_unlock();
	return cuMemFree_v2(address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream_handle)
{
	struct stream *stream;
	struct device *device;
	struct range *range;
	struct mark ready;

	TRY(stream_enter(stream_handle, &stream));
	if (stream->capture)
		return driver_leave(capture_free(stream, address));
	range = memory_find(address, &device);
	if (!range || range->base != address)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	ready = stream_ready(stream);
	if (range->graph)
		return driver_leave(graph_memory_free(range->graph, &ready)
					? CUDA_SUCCESS
					: CUDA_ERROR_INVALID_VALUE);
	if (!range->chunk)
		return free_plain(device, range, &ready);
	chunk_free(range->chunk, address, stream_serial(stream), &ready);
	return driver_leave(CUDA_SUCCESS);
}
