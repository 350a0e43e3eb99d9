/* See suballoc.h. */
#include "memory/suballoc.h"

#include <stdlib.h>

#define BLOCK_BYTES (2ull << 20)

struct shared_block {
	struct shared_block *next;
	struct context *context;
	struct range *range; /* the device's */
	enum block_kind kind;
	struct arena inside;
};

bool suballoc_applies(const struct device *device, uint64_t bytes)
{
	return device->gpu->granule_bytes == BLOCK_BYTES && bytes <= BLOCK_BYTES / 2;
}

uint64_t suballoc_take(struct context *context, enum block_kind kind, uint64_t bytes)
{
	static uint64_t last_id = 1ull << 32; /* above the daemon's ids, which begin at 1 */

	for (struct shared_block *block = context->blocks; block; block = block->next) {
		struct range *piece =
		    block->kind == kind ? arena_take(&block->inside, bytes) : NULL;

		if (!piece)
			continue;
		piece->id = ++last_id;
		piece->context = block->range->context;
		piece->managed = kind == BLOCK_MANAGED;
		piece->block = block;
		return piece->base;
	}
	return 0;
}

void suballoc_add(struct context *context, enum block_kind kind, struct range *range)
{
	struct shared_block *block = must(calloc(1, sizeof(*block)));

	arena_begin(&block->inside, range->base, BLOCK_BYTES, true);
	block->context = context;
	block->range = range;
	block->kind = kind;
	block->next = context->blocks;
	context->blocks = block;
	range->block = block;
}

struct range *suballoc_find(const struct shared_block *block, uint64_t address)
{
	return arena_find(&block->inside, address);
}

static void remove_block(struct shared_block *block)
{
	struct shared_block **link = &block->context->blocks;

	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	block->range->block = NULL;
	arena_end(&block->inside);
	free(block);
}

bool suballoc_give(struct shared_block *block, uint64_t address, struct range **range)
{
	arena_give(&block->inside, arena_find(&block->inside, address));
	*range = block->range;
	if (!arena_is_empty(&block->inside))
		return false;
	remove_block(block);
	return true;
}

void suballoc_forget(struct context *context)
{
	while (context->blocks)
		remove_block(context->blocks);
}
