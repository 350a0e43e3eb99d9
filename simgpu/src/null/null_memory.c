/* See null_memory.h. */
#define _GNU_SOURCE
#include "null/null_memory.h"
#include "null/null_numbers.h"

#include <pthread.h>
#include <string.h>

enum {
	GRANULE_SHIFT = 9,
	BLOCK_SHIFT = 21,
	SIZE_COUNT = BLOCK_SHIFT - GRANULE_SHIFT, /* 512 bytes to 1 MiB, by powers of two */
	ARENA_COUNT = 16,			  /* distributed over threads */
	WORDS = 64,				  /* 64 bits each: the places of a block */
	MAX_BLOCKS = 1 << 20,
	MAX_LARGE = 1 << 16,
};

#define SMALL_ADDRESS	 (UINT64_C(1) << 40)
#define LARGE_ADDRESS	 (UINT64_C(1) << 44)
#define POOL_PIECE_BYTES (UINT64_C(32) << 20)

struct block {
	uint64_t words_with_places; /* bit: that word of `places` is not 0 */
	uint64_t places[WORDS];	    /* bit: that place is free */
	uint32_t live;
	uint32_t previous, next; /* of those with places, + 1 */
	uint8_t size;		 /* places are 512 << size bytes */
	uint8_t arena, heap;
	bool taken;
} __attribute__((aligned(64)));

struct arena {
	pthread_mutex_t lock;
	uint32_t with_places[NULL_HEAP_COUNT][SIZE_COUNT]; /* block + 1; 0: none */
} __attribute__((aligned(64)));

struct large {
	uint64_t bytes; /* 0: free */
	uint8_t heap;
};

static struct {
	uint64_t total_bytes, used_bytes;
	int large_shift; /* large addresses are this far apart */
	struct null_numbers block_numbers, large_numbers;
	struct block *blocks;
	struct large *large;
	struct arena arenas[ARENA_COUNT];
	pthread_mutex_t pool_lock;
	uint64_t pool_reserved_bytes, pool_used_bytes, pool_block_bytes;
} memory;

static uint32_t threads_seen;
static __thread uint32_t own_arena; /* + 1 */

static bool gpu_take(uint64_t bytes)
{
	uint64_t used_bytes = __atomic_load_n(&memory.used_bytes, __ATOMIC_RELAXED);

	do {
		if (bytes > memory.total_bytes - used_bytes)
			return false;
	} while (!__atomic_compare_exchange_n(&memory.used_bytes, &used_bytes, used_bytes + bytes,
					      true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return true;
}

static void gpu_give(uint64_t bytes)
{
	__atomic_sub_fetch(&memory.used_bytes, bytes, __ATOMIC_RELAXED);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static bool pool_take(uint64_t bytes)
{
	uint64_t missing, piece;
	bool fits = true;

	pthread_mutex_lock(&memory.pool_lock);
	if (memory.pool_block_bytes + bytes > memory.pool_reserved_bytes) {
		missing = memory.pool_block_bytes + bytes - memory.pool_reserved_bytes;
		piece = round_up(missing, POOL_PIECE_BYTES);
		if (!gpu_take(piece))
			fits = gpu_take(piece = missing);
		if (fits)
			__atomic_add_fetch(&memory.pool_reserved_bytes, piece, __ATOMIC_RELAXED);
	}
	if (fits)
		memory.pool_block_bytes += bytes;
	pthread_mutex_unlock(&memory.pool_lock);
	return fits;
}

static void pool_give(uint64_t bytes)
{
	pthread_mutex_lock(&memory.pool_lock);
	memory.pool_block_bytes -= bytes;
	pthread_mutex_unlock(&memory.pool_lock);
}

void null_pool_trim(uint64_t keep_bytes)
{
	uint64_t spare_bytes = 0, least_bytes;

	pthread_mutex_lock(&memory.pool_lock);
	least_bytes = keep_bytes > memory.pool_block_bytes ? keep_bytes : memory.pool_block_bytes;
	least_bytes = round_up(least_bytes, NULL_BLOCK_BYTES);
	if (memory.pool_reserved_bytes > least_bytes)
		spare_bytes = memory.pool_reserved_bytes - least_bytes;
	__atomic_sub_fetch(&memory.pool_reserved_bytes, spare_bytes, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&memory.pool_lock);
	gpu_give(spare_bytes);
}

static bool heap_take(enum null_heap heap, uint64_t bytes)
{
	return heap == NULL_HEAP_POOL ? pool_take(bytes) : gpu_take(bytes);
}

static void heap_give(enum null_heap heap, uint64_t bytes)
{
	if (heap == NULL_HEAP_POOL)
		pool_give(bytes);
	else
		gpu_give(bytes);
}

static void pool_count(enum null_heap heap, uint64_t bytes)
{
	if (heap == NULL_HEAP_POOL)
		__atomic_add_fetch(&memory.pool_used_bytes, bytes, __ATOMIC_RELAXED);
}

static void link_block(struct arena *arena, uint32_t number)
{
	struct block *block = &memory.blocks[number];
	uint32_t *first = &arena->with_places[block->heap][block->size];

	block->previous = 0;
	block->next = *first;
	if (*first)
		memory.blocks[*first - 1].previous = number + 1;
	*first = number + 1;
}

static void unlink_block(struct arena *arena, uint32_t number)
{
	struct block *block = &memory.blocks[number];

	if (block->next)
		memory.blocks[block->next - 1].previous = block->previous;
	if (block->previous)
		memory.blocks[block->previous - 1].next = block->next;
	else
		arena->with_places[block->heap][block->size] = block->next;
}

/* A new block for the arena, in its list; false if the GPU is full. */
static bool add_block(struct arena *arena, enum null_heap heap, int size)
{
	uint64_t place_count = UINT64_C(1) << (SIZE_COUNT - size);
	struct block *block;
	uint32_t number;

	if (!heap_take(heap, NULL_BLOCK_BYTES))
		return false;
	number = null_number_take(&memory.block_numbers);
	if (number == memory.block_numbers.count) {
		heap_give(heap, NULL_BLOCK_BYTES);
		return false;
	}
	block = &memory.blocks[number];
	if (place_count >= 64) {
		uint64_t words = place_count / 64;
		memset(block->places, 0xff, words * sizeof(uint64_t));
		block->words_with_places = words == 64 ? UINT64_MAX : (UINT64_C(1) << words) - 1;
	} else {
		block->places[0] = (UINT64_C(1) << place_count) - 1;
		block->words_with_places = 1;
	}
	block->size = (uint8_t)size;
	block->heap = (uint8_t)heap;
	block->taken = true;
	__atomic_store_n(&block->arena, (uint8_t)(arena - memory.arenas), __ATOMIC_RELAXED);
	link_block(arena, number);
	return true;
}

static struct arena *arena_of_thread(void)
{
	if (!own_arena)
		own_arena =
		    __atomic_fetch_add(&threads_seen, 1, __ATOMIC_RELAXED) % ARENA_COUNT + 1;
	return &memory.arenas[own_arena - 1];
}

static uint64_t take_small(enum null_heap heap, uint64_t bytes)
{
	int bits = 64 - __builtin_clzll((bytes - 1) | 1);
	int size = bits > GRANULE_SHIFT ? bits - GRANULE_SHIFT : 0;
	struct arena *arena = arena_of_thread();
	uint64_t address = 0;

	pthread_mutex_lock(&arena->lock);
	if (arena->with_places[heap][size] || add_block(arena, heap, size)) {
		uint32_t number = arena->with_places[heap][size] - 1;
		struct block *block = &memory.blocks[number];
		int word = __builtin_ctzll(block->words_with_places);
		int bit = __builtin_ctzll(block->places[word]);

		block->live++;
		block->places[word] &= block->places[word] - 1;
		if (!block->places[word])
			block->words_with_places &= block->words_with_places - 1;
		if (!block->words_with_places)
			unlink_block(arena, number);
		pool_count(heap, UINT64_C(1) << (GRANULE_SHIFT + size));
		address = SMALL_ADDRESS + ((uint64_t)number << BLOCK_SHIFT) +
			  ((uint64_t)(word * 64 + bit) << (GRANULE_SHIFT + size));
	}
	pthread_mutex_unlock(&arena->lock);
	return address;
}

/* The caller holds the arena's lock. */
static bool give_place(struct arena *arena, uint32_t number, uint64_t offset)
{
	struct block *block = &memory.blocks[number];
	uint64_t place = offset >> (GRANULE_SHIFT + block->size);
	uint64_t word = place / 64, bit = UINT64_C(1) << place % 64;
	uint64_t place_bytes = UINT64_C(1) << (GRANULE_SHIFT + block->size);

	if (!block->taken || arena != &memory.arenas[block->arena] || offset % place_bytes ||
	    block->places[word] & bit)
		return false;
	if (!block->words_with_places)
		link_block(arena, number);
	block->places[word] |= bit;
	block->words_with_places |= UINT64_C(1) << word;
	pool_count(block->heap, 0 - place_bytes);
	if (--block->live)
		return true;
	unlink_block(arena, number);
	block->taken = false;
	heap_give(block->heap, NULL_BLOCK_BYTES);
	null_number_give(&memory.block_numbers, number);
	return true;
}

static bool give_small(uint64_t offset)
{
	uint64_t number = offset >> BLOCK_SHIFT;
	struct arena *arena;
	bool given;

	if (number >= memory.block_numbers.count)
		return false;
	arena = &memory.arenas[__atomic_load_n(&memory.blocks[number].arena, __ATOMIC_RELAXED)];
	pthread_mutex_lock(&arena->lock);
	given = give_place(arena, (uint32_t)number, offset & (NULL_BLOCK_BYTES - 1));
	pthread_mutex_unlock(&arena->lock);
	return given;
}

static uint64_t take_large(enum null_heap heap, uint64_t bytes)
{
	uint64_t rounded_bytes = round_up(bytes, NULL_BLOCK_BYTES);
	uint32_t number;

	if (!heap_take(heap, rounded_bytes))
		return 0;
	number = null_number_take(&memory.large_numbers);
	if (number == memory.large_numbers.count) {
		heap_give(heap, rounded_bytes);
		return 0;
	}
	pool_count(heap, rounded_bytes);
	memory.large[number].heap = (uint8_t)heap;
	__atomic_store_n(&memory.large[number].bytes, rounded_bytes, __ATOMIC_RELEASE);
	return LARGE_ADDRESS + ((uint64_t)number << memory.large_shift);
}

static bool give_large(uint64_t offset)
{
	uint64_t number = offset >> memory.large_shift, bytes;
	enum null_heap heap;

	if (number >= memory.large_numbers.count || offset != number << memory.large_shift)
		return false;
	bytes = __atomic_load_n(&memory.large[number].bytes, __ATOMIC_ACQUIRE);
	heap = memory.large[number].heap;
	if (!bytes || !__atomic_compare_exchange_n(&memory.large[number].bytes, &bytes, 0, false,
						   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	pool_count(heap, 0 - bytes);
	heap_give(heap, bytes);
	null_number_give(&memory.large_numbers, (uint32_t)number);
	return true;
}

uint64_t null_memory_take(enum null_heap heap, uint64_t bytes)
{
	if (bytes > memory.total_bytes)
		return 0;
	return bytes <= NULL_BLOCK_BYTES / 2 ? take_small(heap, bytes) : take_large(heap, bytes);
}

bool null_memory_give(uint64_t address)
{
	if (address >= LARGE_ADDRESS)
		return give_large(address - LARGE_ADDRESS);
	return address >= SMALL_ADDRESS && give_small(address - SMALL_ADDRESS);
}

uint64_t null_memory_used_bytes(void)
{
	return __atomic_load_n(&memory.used_bytes, __ATOMIC_RELAXED);
}

uint64_t null_pool_reserved_bytes(void)
{
	return __atomic_load_n(&memory.pool_reserved_bytes, __ATOMIC_RELAXED);
}

uint64_t null_pool_used_bytes(void)
{
	return __atomic_load_n(&memory.pool_used_bytes, __ATOMIC_RELAXED);
}

/* A child is a process of its own; its parent's locks may have been held at fork. */
static void begin_in_child(void)
{
	(void)null_memory_begin(memory.total_bytes);
}

bool null_memory_begin(uint64_t total_bytes)
{
	static bool watched;

	memset(&memory, 0, sizeof(memory));
	memory.total_bytes = total_bytes;
	memory.large_shift = BLOCK_SHIFT;
	while (total_bytes >> memory.large_shift)
		memory.large_shift++;
	for (int i = 0; i < ARENA_COUNT; i++)
		pthread_mutex_init(&memory.arenas[i].lock, NULL);
	pthread_mutex_init(&memory.pool_lock, NULL);
	memory.blocks = null_table(MAX_BLOCKS * sizeof(struct block));
	memory.large = null_table(MAX_LARGE * sizeof(struct large));
	if (!watched)
		watched = pthread_atfork(NULL, NULL, begin_in_child) == 0;
	return watched && memory.large_shift <= 46 && memory.blocks && memory.large &&
	       null_numbers_begin(&memory.block_numbers, MAX_BLOCKS) &&
	       null_numbers_begin(&memory.large_numbers, MAX_LARGE);
}
