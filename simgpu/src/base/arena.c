/*
 * The range is cut into blocks of 2 MiB. Up to 1 MiB an allocation is a slot of a block of its size
 * class (512 bytes times a power of two); above, it is a run of whole blocks. So an address maps to
 * its allocation in constant time, and a million allocations cost three words each.
 */
#define _GNU_SOURCE
#include "base/arena.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_SHIFT 21
#define BLOCK_BYTES (1ull << BLOCK_SHIFT)
#define CLASSES	    12 /* 512 bytes to 1 MiB */

enum block_use { BLOCK_FREE, BLOCK_SLOTS, BLOCK_RUN, BLOCK_TAIL };

struct arena_block {
	uint8_t use, class;
	uint32_t run;  /* of a run's first block: its length; of the others: the first's index */
	uint32_t used; /* slots in use */
	uint32_t first_free;		   /* slot + 1 */
	uint32_t next_open, previous_open; /* block + 1, in the list of the class */
	struct range *ranges;		   /* per slot; one for a run */
};

bool arena_reserve(struct arena *arena, uint64_t bytes, bool low)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (low ? MAP_32BIT : 0);
	uint64_t blocks = (bytes + BLOCK_BYTES - 1) >> BLOCK_SHIFT;
	char *mapped;

	if (arena->base)
		return true;
	if (!blocks || blocks >= UINT32_MAX)
		return false;
	mapped = mmap(NULL, (blocks + 1) << BLOCK_SHIFT, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (mapped == MAP_FAILED)
		return false;
	/* A fork child has no driver, hence no use for the pages. */
	madvise(mapped, (blocks + 1) << BLOCK_SHIFT, MADV_DONTFORK);
	arena->block = calloc(blocks, sizeof(*arena->block));
	if (!arena->block) {
		munmap(mapped, (blocks + 1) << BLOCK_SHIFT);
		return false;
	}
	arena->base = ((uint64_t)(uintptr_t)mapped + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
	arena->blocks = (uint32_t)blocks;
	return true;
}

static void discard(uint64_t base, uint64_t bytes)
{
	madvise((void *)(uintptr_t)base, bytes, MADV_DONTNEED);
}

static uint64_t block_base(const struct arena *arena, uint32_t index)
{
	return arena->base + ((uint64_t)index << BLOCK_SHIFT);
}

static uint32_t next_index(const struct arena *arena, uint32_t index)
{
	const struct arena_block *block = &arena->block[index];

	return index + (block->use == BLOCK_RUN ? block->run : 1);
}

/* Next fit: index of `count` free blocks in a row, or UINT32_MAX. */
static uint32_t find_free(struct arena *arena, uint32_t count)
{
	for (int pass = 0; pass < 2; pass++) {
		uint32_t end = pass ? arena->next : arena->blocks;
		uint32_t from = pass ? 0 : arena->next;
		uint32_t length = 0;

		/* The second pass may enter blocks that the first has checked, so that no run is
		 * missed. */
		if (pass)
			end = end + count < arena->blocks ? end + count : arena->blocks;
		for (uint32_t at = from; at < end; at = next_index(arena, at)) {
			length = arena->block[at].use == BLOCK_FREE ? length + 1 : 0;
			if (length == count)
				return at + 1 - count;
		}
	}
	return UINT32_MAX;
}

static void open_list_add(struct arena *arena, uint32_t index)
{
	struct arena_block *block = &arena->block[index];

	block->previous_open = 0;
	block->next_open = arena->open[block->class];
	if (block->next_open)
		arena->block[block->next_open - 1].previous_open = index + 1;
	arena->open[block->class] = index + 1;
}

static void open_list_remove(struct arena *arena, uint32_t index)
{
	struct arena_block *block = &arena->block[index];

	if (block->previous_open)
		arena->block[block->previous_open - 1].next_open = block->next_open;
	else
		arena->open[block->class] = block->next_open;
	if (block->next_open)
		arena->block[block->next_open - 1].previous_open = block->previous_open;
}

static bool open_block(struct arena *arena, int class)
{
	uint32_t slots = 1u << (CLASSES - class);
	uint32_t index = find_free(arena, 1);
	struct arena_block *block;

	if (index == UINT32_MAX)
		return false;
	block = &arena->block[index];
	block->ranges = calloc(slots, sizeof(*block->ranges));
	if (!block->ranges)
		return false;
	for (uint32_t i = 0; i + 1 < slots; i++)
		block->ranges[i].id = i + 2;
	block->use = BLOCK_SLOTS;
	block->class = (uint8_t)class;
	block->used = 0;
	block->first_free = 1;
	arena->next = index + 1 < arena->blocks ? index + 1 : 0;
	open_list_add(arena, index);
	return true;
}

static struct range *take_slot(struct arena *arena, int class, uint64_t bytes)
{
	struct arena_block *block;
	struct range *range;
	uint32_t index, slot;

	if (!arena->open[class] && !open_block(arena, class))
		return NULL;
	index = arena->open[class] - 1;
	block = &arena->block[index];
	slot = block->first_free - 1;
	range = &block->ranges[slot];
	block->first_free = (uint32_t)range->id;
	block->used++;
	if (!block->first_free)
		open_list_remove(arena, index);
	range->base = block_base(arena, index) + ((uint64_t)slot * SIM_GRANULE_BYTES << class);
	range->bytes = bytes;
	return range;
}

static struct range *take_run(struct arena *arena, uint64_t bytes)
{
	uint64_t count = (bytes + BLOCK_BYTES - 1) >> BLOCK_SHIFT;
	struct range *range;
	uint32_t index;

	if (count > arena->blocks)
		return NULL;
	index = find_free(arena, (uint32_t)count);
	range = index == UINT32_MAX ? NULL : calloc(1, sizeof(*range));
	if (!range)
		return NULL;
	for (uint32_t i = 1; i < count; i++)
		arena->block[index + i] = (struct arena_block){.use = BLOCK_TAIL, .run = index};
	arena->block[index] =
	    (struct arena_block){.use = BLOCK_RUN, .run = (uint32_t)count, .ranges = range};
	arena->next = index + count < arena->blocks ? index + (uint32_t)count : 0;
	range->base = block_base(arena, index);
	range->bytes = bytes;
	return range;
}

struct range *arena_take(struct arena *arena, uint64_t bytes)
{
	for (int class = 0; class < CLASSES; class++)
		if (bytes <= (uint64_t)SIM_GRANULE_BYTES << class)
			return take_slot(arena, class, bytes);
	return take_run(arena, bytes);
}

static void give_run(struct arena *arena, uint32_t index)
{
	uint32_t count = arena->block[index].run;

	free(arena->block[index].ranges);
	for (uint32_t i = 0; i < count; i++)
		arena->block[index + i] = (struct arena_block){.use = BLOCK_FREE};
	discard(block_base(arena, index), (uint64_t)count << BLOCK_SHIFT);
}

void arena_give(struct arena *arena, struct range *range)
{
	uint32_t index = (uint32_t)((range->base - arena->base) >> BLOCK_SHIFT);
	struct arena_block *block = &arena->block[index];

	if (block->use == BLOCK_RUN) {
		give_run(arena, index);
		return;
	}
	*range = (struct range){.id = block->first_free};
	if (!block->first_free)
		open_list_add(arena, index);
	block->first_free = (uint32_t)(range - block->ranges) + 1;
	if (--block->used)
		return;
	open_list_remove(arena, index);
	free(block->ranges);
	*block = (struct arena_block){.use = BLOCK_FREE};
	discard(block_base(arena, index), BLOCK_BYTES);
}

struct range *arena_find(const struct arena *arena, uint64_t address)
{
	const struct arena_block *block;
	struct range *range = NULL;
	uint64_t index;

	if (!arena->base || address < arena->base)
		return NULL;
	index = (address - arena->base) >> BLOCK_SHIFT;
	if (index >= arena->blocks)
		return NULL;
	block = &arena->block[index];
	if (block->use == BLOCK_TAIL)
		block = &arena->block[block->run];
	if (block->use == BLOCK_RUN)
		range = block->ranges;
	else if (block->use == BLOCK_SLOTS)
		range = &block->ranges[(address & (BLOCK_BYTES - 1)) / SIM_GRANULE_BYTES >>
				       block->class];
	return range && range->bytes && address - range->base < range->bytes ? range : NULL;
}

struct range *arena_next(const struct arena *arena, uint64_t context, uint64_t *at)
{
	/* `*at` counts slots: block index and slot within it. */
	while (*at >> CLASSES < arena->blocks) {
		uint32_t index = (uint32_t)(*at >> CLASSES);
		uint32_t slot = (uint32_t)*at & ((1u << CLASSES) - 1);
		const struct arena_block *block = &arena->block[index];
		uint32_t slots = 0;

		if (block->use == BLOCK_SLOTS)
			slots = 1u << (CLASSES - block->class);
		else if (block->use == BLOCK_RUN)
			slots = 1;
		for (; slot < slots; slot++) {
			if (!block->ranges[slot].bytes || block->ranges[slot].context != context)
				continue;
			*at = ((uint64_t)index << CLASSES) + slot + 1;
			return &block->ranges[slot];
		}
		*at = (uint64_t)(index + 1) << CLASSES;
	}
	return NULL;
}
