/* The pieces of memory pools; see pool.h. */
#include "memory/pool.h"

#include <stdlib.h>

#include "memory/leaving.h"

/* An allocation that the program has freed. Its piece is free once `ready` is reached. */
struct freeing {
	struct freeing *next;
	struct range *range;
	uint64_t stream;
	struct mark ready;
};

struct chunk {
	struct chunk *next;
	struct pool *pool;
	struct device *device;
	struct range *range; /* the device's */
	uint64_t id, bytes;
	struct arena inside;
	struct freeing *freeing;
};

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

uint64_t pool_growth_bytes(uint64_t bytes)
{
	return bytes <= CHUNK_BYTES ? CHUNK_BYTES : round_up(bytes, BLOCK_BYTES);
}

struct pool *chunk_pool(struct chunk *chunk)
{
	return chunk->pool;
}

/* Frees the pieces whose `ready` was reached when the engines were last advanced. */
static void settle(struct chunk *chunk)
{
	struct freeing **link = &chunk->freeing;

	while (*link) {
		struct freeing *at = *link;

		if (!mark_seen(&at->ready)) {
			link = &at->next;
			continue;
		}
		*link = at->next;
		arena_give(&chunk->inside, at->range);
		free(at);
	}
}

static uint64_t take(struct chunk *chunk, uint64_t bytes)
{
	static uint64_t last_id;
	struct range *range = arena_take(&chunk->inside, bytes);

	if (!range)
		return 0;
	range->id = ++last_id;
	range->chunk = chunk;
	return range->base;
}

/* Takes a free piece, or the beginning of a piece that the same stream has freed. */
static uint64_t chunk_take(struct chunk *chunk, uint64_t bytes, uint64_t stream)
{
	struct freeing **link = &chunk->freeing;
	uint64_t address;

	settle(chunk);
	address = take(chunk, bytes);
	if (address)
		return address;
	while (*link && ((*link)->stream != stream ||
			 round_up((*link)->range->bytes, SIM_GRANULE_BYTES) < bytes))
		link = &(*link)->next;
	if (!*link)
		return 0;
	if (arena_cut(&chunk->inside, (*link)->range, bytes)) {
		struct freeing *gone = *link;

		*link = gone->next;
		free(gone);
	}
	return take(chunk, bytes);
}

static void count_used(struct pool *pool, uint64_t bytes)
{
	pool->used_bytes += round_up(bytes, SIM_GRANULE_BYTES);
	if (pool->used_high_bytes < pool->used_bytes)
		pool->used_high_bytes = pool->used_bytes;
}

uint64_t pool_take_at(struct pool *pool, uint64_t offset, uint64_t bytes)
{
	struct chunk *chunk = pool->chunks;
	struct range *before = offset ? arena_take(&chunk->inside, offset) : NULL;
	uint64_t address = before || !offset ? take(chunk, bytes) : 0;

	if (before)
		arena_give(&chunk->inside, before);
	if (address)
		count_used(pool, bytes);
	return address;
}

uint64_t chunk_place(const struct chunk *chunk, uint64_t address, uint64_t *offset, uint64_t *bytes)
{
	*offset = address - chunk->range->base;
	*bytes = chunk->bytes;
	return chunk->id;
}

uint64_t pool_take(struct pool *pool, uint64_t bytes, uint64_t stream)
{
	uint64_t address = 0;

	marks_look();
	for (struct chunk *chunk = pool->chunks; chunk && !address; chunk = chunk->next)
		address = chunk_take(chunk, bytes, stream);
	if (address)
		count_used(pool, bytes);
	return address;
}

bool pool_grow(struct pool *pool, uint64_t bytes, uint64_t id)
{
	struct range *range = arena_take(&pool->device->arena, bytes);
	struct chunk *chunk;

	if (!range)
		return false;
	chunk = must(calloc(1, sizeof(*chunk)));
	chunk->range = range;
	arena_begin(&chunk->inside, range->base, bytes, true);
	chunk->pool = pool;
	chunk->device = pool->device;
	chunk->id = chunk->range->id = id;
	chunk->bytes = bytes;
	chunk->range->chunk = chunk;
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	pool->reserved_bytes += bytes;
	if (pool->reserved_high_bytes < pool->reserved_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return true;
}

struct range *chunk_find(struct chunk *chunk, uint64_t address)
{
	struct range *range = arena_find(&chunk->inside, address);

	return range && !range->leaving ? range : NULL;
}

/* A destroyed pool ends when its last chunk is gone. */
static void let_go(struct pool *pool)
{
	if (pool->destroyed && !pool->chunks)
		object_free(pool);
}

void chunk_free(struct chunk *chunk, uint64_t address, uint64_t stream, const struct mark *ready)
{
	struct freeing *freeing = must(malloc(sizeof(*freeing)));
	struct range *range = chunk_find(chunk, address);

	chunk->pool->used_bytes -= round_up(range->bytes, SIM_GRANULE_BYTES);
	*freeing = (struct freeing){chunk->freeing, range, stream, *ready};
	chunk->freeing = freeing;
	range->leaving = true;
}

static bool is_idle(struct chunk *chunk)
{
	settle(chunk);
	return arena_is_empty(&chunk->inside);
}

/* Removes the chunk from its pool, frees its addresses, and adds it to the list `gone`. */
static void detach(struct chunk **link, struct chunk **gone)
{
	struct chunk *chunk = *link;

	*link = chunk->next;
	chunk->pool->reserved_bytes -= chunk->bytes;
	arena_give(&chunk->device->arena, chunk->range);
	chunk->next = *gone;
	*gone = chunk;
}

void pool_trim(struct pool *pool, uint64_t keep_bytes, struct chunk **gone)
{
	struct chunk **link = &pool->chunks;

	marks_look();
	while (*link) {
		if (pool->reserved_bytes - (*link)->bytes >= keep_bytes &&
		    pool->reserved_bytes >= (*link)->bytes && is_idle(*link))
			detach(link, gone);
		else
			link = &(*link)->next;
	}
	let_go(pool);
}

static void shed(struct pool *pool, struct chunk **gone)
{
	struct chunk **link = &pool->chunks;

	while (*link && pool->reserved_bytes > pool->threshold_bytes) {
		if (is_idle(*link))
			detach(link, gone);
		else
			link = &(*link)->next;
	}
	let_go(pool);
}

void chunks_give_back(struct chunk *gone)
{
	while (gone) {
		struct chunk *next = gone->next;

		device_give_back(gone->device, gone->id);
		while (gone->freeing) {
			struct freeing *after = gone->freeing->next;

			free(gone->freeing);
			gone->freeing = after;
		}
		arena_end(&gone->inside);
		free(gone);
		gone = next;
	}
}

CUresult pools_synchronised(struct device *device)
{
	struct chunk *gone = NULL;
	struct pool *pool;
	uint32_t at = 0;

	driver_lock();
	marks_look();
	while ((pool = object_next(OBJECT_POOL, &at)))
		if (pool->device == device)
			shed(pool, &gone);
	driver_unlock();
	chunks_give_back(gone);
	leaving_go(device);
	return device_alive(device->link);
}

void pools_forget(struct device *device, struct chunk **gone)
{
	uint32_t at = 0;
	struct pool *pool;

	while ((pool = object_next(OBJECT_POOL, &at))) {
		if (pool->device != device)
			continue;
		while (pool->chunks)
			detach(&pool->chunks, gone);
		object_free(pool);
	}
	device->default_pool = device->current_pool = NULL;
}

struct pool *pool_new(struct device *device)
{
	struct pool *pool = object_new(OBJECT_POOL, sizeof(*pool));

	pool->device = device;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	return pool;
}

struct pool *pool_default(struct device *device)
{
	if (!device->default_pool) {
		device->default_pool = pool_new(device);
		device->default_pool->is_default = true;
	}
	return device->default_pool;
}
