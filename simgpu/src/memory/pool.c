/* The pieces of memory pools; see pool.h. */
#include "memory/pool.h"

#include <stdlib.h>
#include <string.h>

#include "memory/leaving.h"

enum piece_state { PIECE_FREE, PIECE_USED, PIECE_FREEING };

struct piece {
	struct range range; /* the requested size; 0 if it is not in use */
	uint64_t base, bytes;
	enum piece_state state;
	uint64_t stream; /* of one that is being freed */
	struct mark ready;
};

/* The pieces cover the chunk, in order. */
struct chunk {
	struct chunk *next;
	struct pool *pool;
	struct device *device;
	struct range *range; /* the arena's */
	uint64_t id, bytes;
	struct piece *pieces;
	size_t count, cap;
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

/* Pieces whose free was completed at the last look are merged with their neighbours. */
static void merge(struct chunk *chunk)
{
	size_t kept = 0;

	for (size_t i = 0; i < chunk->count; i++) {
		struct piece *piece = &chunk->pieces[i];
		struct piece *last = kept ? &chunk->pieces[kept - 1] : NULL;

		if (piece->state == PIECE_FREEING && mark_seen(&piece->ready))
			piece->state = PIECE_FREE;
		if (last && last->state == PIECE_FREE && piece->state == PIECE_FREE)
			last->bytes += piece->bytes;
		else if (kept++ != i)
			chunk->pieces[kept - 1] = *piece;
	}
	chunk->count = kept;
}

static bool fits(const struct piece *piece, uint64_t bytes, uint64_t stream)
{
	return piece->bytes >= bytes &&
	       (piece->state == PIECE_FREE ||
		(piece->state == PIECE_FREEING && piece->stream == stream));
}

/* Splits `bytes` off the beginning of the piece; the rest keeps its state. */
static bool cut(struct chunk *chunk, size_t at, uint64_t bytes)
{
	struct piece rest = chunk->pieces[at];

	if (rest.bytes == bytes)
		return true;
	if (chunk->count == chunk->cap) {
		size_t cap = chunk->cap ? chunk->cap * 2 : 8;
		struct piece *grown = realloc(chunk->pieces, cap * sizeof(*grown));

		if (!grown)
			return false;
		chunk->pieces = grown;
		chunk->cap = cap;
	}
	memmove(&chunk->pieces[at + 2], &chunk->pieces[at + 1],
		(chunk->count - at - 1) * sizeof(*chunk->pieces));
	chunk->pieces[at].bytes = bytes;
	rest.base += bytes;
	rest.bytes -= bytes;
	chunk->pieces[at + 1] = rest;
	chunk->count++;
	return true;
}

/* The piece's first `bytes` are in use from here on; 0 if there is no memory for the entry. */
static uint64_t use(struct chunk *chunk, size_t at, uint64_t bytes)
{
	static uint64_t last_id;
	struct piece *piece;

	if (!cut(chunk, at, round_up(bytes, SIM_GRANULE_BYTES)))
		return 0;
	piece = &chunk->pieces[at];
	piece->state = PIECE_USED;
	piece->range =
	    (struct range){.base = piece->base, .bytes = bytes, .id = ++last_id, .chunk = chunk};
	return piece->base;
}

static uint64_t chunk_take(struct chunk *chunk, uint64_t bytes, uint64_t stream)
{
	merge(chunk);
	for (size_t at = 0; at < chunk->count; at++)
		if (fits(&chunk->pieces[at], round_up(bytes, SIM_GRANULE_BYTES), stream))
			return use(chunk, at, bytes);
	return 0;
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
	uint64_t address;

	if (offset > chunk->bytes || bytes > chunk->bytes - offset ||
	    (offset && !cut(chunk, 0, offset)))
		return 0;
	address = use(chunk, offset > 0, bytes);
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
	struct chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return false;
	*chunk = (struct chunk){.pool = pool, .device = pool->device, .id = id, .bytes = bytes};
	chunk->pieces = calloc(1, sizeof(*chunk->pieces));
	chunk->range = chunk->pieces ? arena_take(&pool->device->arena, bytes) : NULL;
	if (!chunk->range) {
		free(chunk->pieces);
		free(chunk);
		return false;
	}
	chunk->range->chunk = chunk;
	chunk->range->id = id;
	chunk->pieces[0] = (struct piece){.base = chunk->range->base, .bytes = bytes};
	chunk->count = chunk->cap = 1;
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	pool->reserved_bytes += bytes;
	if (pool->reserved_high_bytes < pool->reserved_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return true;
}

static struct piece *piece_at(struct chunk *chunk, uint64_t address)
{
	size_t from = 0, to = chunk->count;

	while (from < to) {
		size_t middle = (from + to) / 2;
		struct piece *piece = &chunk->pieces[middle];

		if (address - piece->base < piece->bytes)
			return piece->state == PIECE_USED ? piece : NULL;
		if (address < piece->base)
			to = middle;
		else
			from = middle + 1;
	}
	return NULL;
}

struct range *chunk_find(struct chunk *chunk, uint64_t address)
{
	struct piece *piece = piece_at(chunk, address);

	return piece && address - piece->base < piece->range.bytes ? &piece->range : NULL;
}

/* A destroyed pool ends with its last allocation. */
static void let_go(struct pool *pool)
{
	if (pool->destroyed && !pool->chunks)
		object_free(pool);
}

bool chunk_free(struct chunk *chunk, uint64_t address, uint64_t stream, const struct mark *ready)
{
	struct piece *piece = piece_at(chunk, address);

	if (!piece || piece->base != address)
		return false;
	piece->state = PIECE_FREEING;
	piece->range.bytes = 0;
	piece->stream = stream;
	piece->ready = *ready;
	chunk->pool->used_bytes -= piece->bytes;
	return true;
}

static bool is_idle(struct chunk *chunk)
{
	merge(chunk);
	return chunk->count == 1 && chunk->pieces[0].state == PIECE_FREE;
}

/* Out of the pool and of the addresses, onto the list. */
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

void pools_shed(struct device *device, struct chunk **gone)
{
	uint32_t at = 0;
	struct pool *pool;

	marks_look();
	while ((pool = object_next(OBJECT_POOL, &at)))
		if (pool->device == device)
			shed(pool, gone);
}

void chunks_give_back(struct chunk *gone)
{
	while (gone) {
		struct chunk *next = gone->next;

		device_give_back(gone->device, gone->id);
		free(gone->pieces);
		free(gone);
		gone = next;
	}
}

CUresult pools_synchronised(struct device *device)
{
	struct chunk *gone = NULL;

	driver_lock();
	pools_shed(device, &gone);
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

	if (!pool)
		return NULL;
	pool->device = device;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	return pool;
}

struct pool *pool_default(struct device *device)
{
	if (!device->default_pool) {
		device->default_pool = pool_new(device);
		if (device->default_pool)
			device->default_pool->is_default = true;
	}
	return device->default_pool;
}
