/* Memory of graphs: which blocks of GPU memory serve which allocation nodes; see graph.h. */
#include "graph/graph.h"
#include "memory/pool.h"

#include <stdlib.h>

static uint64_t block_bytes(const struct graph_memory *memory)
{
	return (memory->range->bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
}

/* The memory of all allocation nodes, in any order. */
static struct graph_memory *all;

struct graph_memory *graph_memory_new(struct device *device, uint64_t bytes)
{
	struct graph_memory *memory = must(calloc(1, sizeof(*memory)));

	memory->device = device;
	memory->users = 1;
	memory->range = device_addresses(device) ? arena_take(&device->arena, bytes) : NULL;
	if (!memory->range) {
		free(memory);
		return NULL;
	}
	memory->range->graph = memory;
	memory->next = all;
	all = memory;
	return memory;
}

/* Returns the block to the device's unused blocks, which any graph may use. */
static void unback(struct graph_memory *memory)
{
	struct graph_block *block = memory->block;
	struct graph_pool *pool = &memory->device->graphs;

	if (!block)
		return;
	memory->block = NULL;
	block->ready = memory->done;
	block->next = pool->unused;
	pool->unused = block;
	pool->used_bytes -= block->bytes;
}

static void end_if_unused(struct graph_memory *memory)
{
	struct graph_memory **link = &all;

	if (memory->users || memory->live)
		return;
	unback(memory);
	arena_give(&memory->device->arena, memory->range);
	while (*link != memory)
		link = &(*link)->next;
	*link = memory->next;
	free(memory);
}

void graph_memory_release(struct graph_memory *memory)
{
	memory->users--;
	end_if_unused(memory);
}

bool graph_memory_free(struct graph_memory *memory, const struct mark *ready)
{
	if (!memory->live)
		return false;
	memory->live = false;
	mark_add(&memory->done, ready);
	end_if_unused(memory);
	return true;
}

/* Removes and returns the device's smallest unused block of that size or more. */
static struct graph_block *take_unused(struct device *device, uint64_t bytes)
{
	struct graph_block **best = NULL;
	struct graph_block *block;

	for (struct graph_block **at = &device->graphs.unused; *at; at = &(*at)->next)
		if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	if (!best)
		return NULL;
	block = *best;
	*best = block->next;
	return block;
}

/* Serves allocations from unused blocks. Returns the first that gets no block, or NULL. */
static struct graph_memory *first_without(struct exec *exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		struct graph_memory *memory = exec->steps[i].memory;
		struct graph_block *block;

		if (exec->steps[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || memory->block)
			continue;
		block = take_unused(memory->device, block_bytes(memory));
		if (!block)
			return memory;
		memory->block = block;
		memory->device->graphs.used_bytes += block->bytes;
	}
	return NULL;
}

static CUresult allocate_or_trim(struct device *device, uint64_t bytes, uint64_t *id)
{
	CUresult result = device_take(device, 0, bytes, id);
	struct graph_block *gone = NULL;

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	driver_lock();
	graph_memory_trim(device, &gone);
	driver_unlock();
	if (!gone)
		return result;
	graph_blocks_give_back(gone);
	return device_take(device, 0, bytes, id);
}

/* Marks memory that a launch is about to use, so that no trim frees it. */
static void set_wanted(struct exec *exec, bool wanted)
{
	for (size_t i = 0; exec && i < exec->count; i++)
		if (exec->steps[i].memory)
			exec->steps[i].memory->wanted = wanted;
}

/* Adds an unused block. The caller holds the lock, which is released during the request. */
static CUresult reserve(struct device *device, uint64_t bytes)
{
	struct graph_block *block = must(calloc(1, sizeof(*block)));
	CUresult result;

	driver_unlock();
	block->device = device;
	block->bytes = bytes;
	result = allocate_or_trim(device, bytes, &block->id);
	driver_lock();
	if (result != CUDA_SUCCESS) {
		free(block);
		return result;
	}
	block->next = device->graphs.unused;
	device->graphs.unused = block;
	device->graphs.reserved_bytes += bytes;
	return CUDA_SUCCESS;
}

CUresult graph_memory_back(CUgraphExec handle)
{
	CUresult result = CUDA_SUCCESS;
	struct graph_block *gone = NULL;
	struct graph_memory *memory;
	struct device *device = NULL;
	struct exec *exec;

	driver_lock();
	while (result == CUDA_SUCCESS && (exec = object_get(handle, OBJECT_EXEC)) &&
	       (memory = first_without(exec))) {
		set_wanted(exec, true);
		device = memory->device;
		result = reserve(device, block_bytes(memory));
	}
	set_wanted(object_get(handle, OBJECT_EXEC), false);
	if (result != CUDA_SUCCESS)
		graph_memory_trim(device, &gone);
	driver_unlock();
	graph_blocks_give_back(gone);
	return result;
}

static void move_unused(struct device *device, bool all_of_them, struct graph_block **gone)
{
	struct graph_block **at = &device->graphs.unused;

	while (*at) {
		struct graph_block *block = *at;

		if (!all_of_them && !mark_seen(&block->ready)) {
			at = &block->next;
			continue;
		}
		*at = block->next;
		device->graphs.reserved_bytes -= block->bytes;
		block->next = *gone;
		*gone = block;
	}
}

void graph_memory_trim(struct device *device, struct graph_block **gone)
{
	marks_look();
	for (struct graph_memory *at = all; at; at = at->next)
		if (at->device == device && !at->live && !at->wanted && mark_seen(&at->done))
			unback(at);
	move_unused(device, false, gone);
}

void graph_memory_forget(struct device *device, struct graph_block **gone)
{
	struct graph_memory *next;

	for (struct graph_memory *at = all; at; at = next) {
		next = at->next;
		if (at->device != device)
			continue;
		unback(at);
		at->live = false;
		end_if_unused(at);
	}
	move_unused(device, true, gone);
}

void graph_blocks_give_back(struct graph_block *gone)
{
	while (gone) {
		struct graph_block *next = gone->next;

		device_give_back(gone->device, gone->id);
		free(gone);
		gone = next;
	}
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	struct graph_block *gone = NULL;
	struct device *device;
	CUresult result;

	TRY(driver_enter());
	result = device_get(ordinal, &device);
	if (result == CUDA_SUCCESS)
		graph_memory_trim(device, &gone);
	driver_unlock();
	graph_blocks_give_back(gone);
	return result;
}

/* Returns the current value also where a maximum is requested. */
CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	if (!value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*(uint64_t *)value = attribute < CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
				 ? device->graphs.used_bytes
				 : device->graphs.reserved_bytes;
	return driver_leave(CUDA_SUCCESS);
}
