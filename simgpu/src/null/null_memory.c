/* See null_memory.h. One lock guards all. Without contention it needs no system call. */
#define _GNU_SOURCE
#include "null/null_memory.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum {
	GRANULE_SHIFT = 9,
	BLOCK_SHIFT = 21,
	SIZE_COUNT = BLOCK_SHIFT - GRANULE_SHIFT, /* 512 bytes to 1 MiB, by powers of two */
	WORDS = 64,				  /* words of a block's bitmap of places */
	MAX_BLOCKS = 1 << 20,
	MAX_LARGE = 1 << 16,
};

#define SMALL_ADDRESS	 (UINT64_C(1) << 40)
#define LARGE_ADDRESS	 (UINT64_C(1) << 44)
#define POOL_PIECE_BYTES (UINT64_C(32) << 20)

/* Numbers of blocks or large allocations. Freed ones are reused first, the latest first. */
struct numbers {
	uint32_t top;	/* latest freed number + 1; 0: none */
	uint32_t fresh; /* the first number that was never used */
	uint32_t count;
	uint32_t *below; /* for each freed number: the number freed before it, + 1 */
};

struct block {
	uint64_t words_with_places; /* bit n: word n of `places` is not 0 */
	uint64_t places[WORDS];	    /* bit n: place n is free */
	uint32_t live;
	uint8_t size; /* each place (small allocation) has 512 << size bytes */
	uint8_t heap;
	bool taken;
};

struct large {
	uint64_t bytes; /* 0: free */
	uint8_t heap;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint64_t total_bytes, used_bytes;
	uint64_t pool_reserved_bytes, pool_block_bytes;
	int large_shift; /* large addresses are 1 << large_shift apart */
	struct numbers block_numbers, large_numbers;
	struct block *blocks;
	struct large *large;
	uint32_t current[NULL_HEAP_COUNT][SIZE_COUNT]; /* the block being filled + 1; 0: none */
} memory;

/* Returns zeroed memory. The kernel provides each page at its first use. */
static void *table(uint64_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

static bool numbers_begin(struct numbers *numbers, uint32_t count)
{
	*numbers = (struct numbers){.count = count, .below = table(count * sizeof(uint32_t))};
	return numbers->below;
}

/* Takes a free number. Returns the count if there is none. */
static uint32_t number_take(struct numbers *numbers)
{
	uint32_t taken = numbers->top;

	if (!taken)
		return numbers->fresh < numbers->count ? numbers->fresh++ : numbers->count;
	numbers->top = numbers->below[taken - 1];
	return taken - 1;
}

static void number_give(struct numbers *numbers, uint32_t number)
{
	numbers->below[number] = numbers->top;
	numbers->top = number + 1;
}

static bool gpu_take(uint64_t bytes)
{
	if (bytes > memory.total_bytes - memory.used_bytes)
		return false;
	memory.used_bytes += bytes;
	return true;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static bool heap_take(enum null_heap heap, uint64_t bytes)
{
	uint64_t missing, piece;

	if (heap == NULL_HEAP_DEVICE)
		return gpu_take(bytes);
	if (memory.pool_block_bytes + bytes > memory.pool_reserved_bytes) {
		missing = memory.pool_block_bytes + bytes - memory.pool_reserved_bytes;
		piece = round_up(missing, POOL_PIECE_BYTES);
		if (!gpu_take(piece) && !gpu_take(piece = missing))
			return false;
		memory.pool_reserved_bytes += piece;
	}
	memory.pool_block_bytes += bytes;
	return true;
}

static void heap_give(enum null_heap heap, uint64_t bytes)
{
	if (heap == NULL_HEAP_POOL)
		memory.pool_block_bytes -= bytes;
	else
		memory.used_bytes -= bytes;
}

/* Adds a block to be filled. Returns false if the GPU or the table is full. */
static bool add_block(enum null_heap heap, int size)
{
	uint64_t place_count = UINT64_C(1) << (SIZE_COUNT - size), words = (place_count + 63) / 64;
	struct block *block;
	uint32_t number;

	if (!heap_take(heap, NULL_BLOCK_BYTES))
		return false;
	number = number_take(&memory.block_numbers);
	if (number == memory.block_numbers.count) {
		heap_give(heap, NULL_BLOCK_BYTES);
		return false;
	}
	block = &memory.blocks[number];
	*block = (struct block){.size = (uint8_t)size, .heap = (uint8_t)heap, .taken = true};
	memset(block->places, 0xff, words * sizeof(uint64_t));
	if (place_count < 64)
		block->places[0] = (UINT64_C(1) << place_count) - 1;
	block->words_with_places = words == 64 ? UINT64_MAX : (UINT64_C(1) << words) - 1;
	memory.current[heap][size] = number + 1;
	return true;
}

static bool has_places(uint32_t current)
{
	return current && memory.blocks[current - 1].words_with_places;
}

static uint64_t take_small(enum null_heap heap, uint64_t bytes)
{
	int bits = 64 - __builtin_clzll((bytes - 1) | 1);
	int size = bits > GRANULE_SHIFT ? bits - GRANULE_SHIFT : 0, word, bit;
	struct block *block;
	uint32_t number;

	if (!has_places(memory.current[heap][size]) && !add_block(heap, size))
		return 0;
	number = memory.current[heap][size] - 1;
	block = &memory.blocks[number];
	word = __builtin_ctzll(block->words_with_places);
	bit = __builtin_ctzll(block->places[word]);
	block->live++;
	block->places[word] &= block->places[word] - 1;
	if (!block->places[word])
		block->words_with_places &= block->words_with_places - 1;
	return SMALL_ADDRESS + ((uint64_t)number << BLOCK_SHIFT) +
	       ((uint64_t)(word * 64 + bit) << (GRANULE_SHIFT + size));
}

/* Frees a place. Its block is the next to be filled. */
static bool give_small(uint64_t offset)
{
	uint32_t number = (uint32_t)(offset >> BLOCK_SHIFT);
	struct block *block = &memory.blocks[number];
	uint64_t place, word, bit;

	if (offset >> BLOCK_SHIFT >= memory.block_numbers.count || !block->taken)
		return false;
	offset &= NULL_BLOCK_BYTES - 1;
	place = offset >> (GRANULE_SHIFT + block->size);
	word = place / 64;
	bit = UINT64_C(1) << place % 64;
	if (offset != place << (GRANULE_SHIFT + block->size) || block->places[word] & bit)
		return false;
	block->places[word] |= bit;
	block->words_with_places |= UINT64_C(1) << word;
	memory.current[block->heap][block->size] = number + 1;
	if (--block->live)
		return true;
	memory.current[block->heap][block->size] = 0;
	block->taken = false;
	heap_give(block->heap, NULL_BLOCK_BYTES);
	number_give(&memory.block_numbers, number);
	return true;
}

static uint64_t take_large(enum null_heap heap, uint64_t bytes)
{
	uint64_t rounded_bytes = round_up(bytes, NULL_BLOCK_BYTES);
	uint32_t number;

	if (!heap_take(heap, rounded_bytes))
		return 0;
	number = number_take(&memory.large_numbers);
	if (number == memory.large_numbers.count) {
		heap_give(heap, rounded_bytes);
		return 0;
	}
	memory.large[number] = (struct large){rounded_bytes, (uint8_t)heap};
	return LARGE_ADDRESS + ((uint64_t)number << memory.large_shift);
}

static bool give_large(uint64_t offset)
{
	uint64_t number = offset >> memory.large_shift;
	struct large *large = &memory.large[number];

	if (number >= memory.large_numbers.count || offset != number << memory.large_shift ||
	    !large->bytes)
		return false;
	heap_give(large->heap, large->bytes);
	large->bytes = 0;
	number_give(&memory.large_numbers, (uint32_t)number);
	return true;
}

uint64_t null_memory_take(enum null_heap heap, uint64_t bytes)
{
	uint64_t address;

	if (bytes > memory.total_bytes)
		return 0;
	pthread_mutex_lock(&lock);
	address = bytes <= NULL_BLOCK_BYTES / 2 ? take_small(heap, bytes) : take_large(heap, bytes);
	pthread_mutex_unlock(&lock);
	return address;
}

bool null_memory_give(uint64_t address)
{
	bool given;

	pthread_mutex_lock(&lock);
	given = address >= LARGE_ADDRESS
		    ? give_large(address - LARGE_ADDRESS)
		    : address >= SMALL_ADDRESS && give_small(address - SMALL_ADDRESS);
	pthread_mutex_unlock(&lock);
	return given;
}

static uint64_t locked(const uint64_t *bytes)
{
	uint64_t value;

	pthread_mutex_lock(&lock);
	value = *bytes;
	pthread_mutex_unlock(&lock);
	return value;
}

uint64_t null_memory_used_bytes(void)
{
	return locked(&memory.used_bytes);
}

uint64_t null_pool_reserved_bytes(void)
{
	return locked(&memory.pool_reserved_bytes);
}

void null_pool_trim(uint64_t keep_bytes)
{
	uint64_t least_bytes;

	pthread_mutex_lock(&lock);
	least_bytes = keep_bytes > memory.pool_block_bytes ? keep_bytes : memory.pool_block_bytes;
	least_bytes = round_up(least_bytes, NULL_BLOCK_BYTES);
	if (memory.pool_reserved_bytes > least_bytes) {
		memory.used_bytes -= memory.pool_reserved_bytes - least_bytes;
		memory.pool_reserved_bytes = least_bytes;
	}
	pthread_mutex_unlock(&lock);
}

/* A child starts with empty memory, and a new lock: the old one may be locked for ever. */
static void begin_in_child(void)
{
	(void)null_memory_begin(memory.total_bytes);
}

bool null_memory_begin(uint64_t total_bytes)
{
	static bool watched;

	pthread_mutex_init(&lock, NULL);
	memset(&memory, 0, sizeof(memory));
	memory.total_bytes = total_bytes;
	memory.large_shift = BLOCK_SHIFT;
	while (total_bytes >> memory.large_shift)
		memory.large_shift++;
	memory.blocks = table(MAX_BLOCKS * sizeof(struct block));
	memory.large = table(MAX_LARGE * sizeof(struct large));
	if (!watched)
		watched = pthread_atfork(NULL, NULL, begin_in_child) == 0;
	return watched && memory.large_shift <= 46 && memory.blocks && memory.large &&
	       numbers_begin(&memory.block_numbers, MAX_BLOCKS) &&
	       numbers_begin(&memory.large_numbers, MAX_LARGE);
}
