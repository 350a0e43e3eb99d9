/* See suballoc.h. */
#include "memory/suballoc.h"

#include <stdlib.h>

#define BLOCK_BYTES (2ull << 20)
#define GRANULES    (BLOCK_BYTES / SIM_GRANULE_BYTES)

struct shared_block {
	struct shared_block *next;
	struct context *context;
	struct range *range; /* the arena's */
	enum block_kind kind;
	uint32_t free_granules;
	struct range *piece[GRANULES]; /* the allocation that each granule belongs to */
};

bool suballoc_applies(const struct device *device, uint64_t bytes)
{
	return device->gpu->granule_bytes == BLOCK_BYTES && bytes <= BLOCK_BYTES / 2;
}

/* First gap of `count` granules, or GRANULES. */
static uint32_t find_gap(const struct shared_block *block, uint32_t count)
{
	uint32_t length = 0;

	for (uint32_t at = 0; at < GRANULES && block->free_granules >= count; at++) {
		length = block->piece[at] ? 0 : length + 1;
		if (length == count)
			return at + 1 - count;
	}
	return GRANULES;
}

uint64_t suballoc_take(struct context *context, enum block_kind kind, uint64_t bytes)
{
	static uint64_t last_id = 1ull << 32; /* the daemon counts from 1 */
	uint32_t count = (uint32_t)((bytes + SIM_GRANULE_BYTES - 1) / SIM_GRANULE_BYTES);

	for (struct shared_block *block = context->blocks; block; block = block->next) {
		uint32_t first = block->kind == kind ? find_gap(block, count) : GRANULES;
		struct range *piece = first < GRANULES ? calloc(1, sizeof(*piece)) : NULL;

		if (!piece)
			continue;
		*piece = (struct range){
		    .base = block->range->base + (uint64_t)first * SIM_GRANULE_BYTES,
		    .bytes = bytes,
		    .id = ++last_id,
		    .context = block->range->context,
		    .managed = kind == BLOCK_MANAGED,
		    .block = block,
		};
		for (uint32_t i = 0; i < count; i++)
			block->piece[first + i] = piece;
		block->free_granules -= count;
		return piece->base;
	}
	return 0;
}

bool suballoc_add(struct context *context, enum block_kind kind, struct range *range)
{
	struct shared_block *block = calloc(1, sizeof(*block));

	if (!block)
		return false;
	block->context = context;
	block->range = range;
	block->kind = kind;
	block->free_granules = GRANULES;
	block->next = context->blocks;
	context->blocks = block;
	range->block = block;
	return true;
}

struct range *suballoc_find(const struct shared_block *block, uint64_t address)
{
	struct range *piece =
	    block->piece[(address - block->range->base) / SIM_GRANULE_BYTES % GRANULES];

	return piece && address - piece->base < piece->bytes ? piece : NULL;
}

static void remove_block(struct shared_block *block)
{
	struct shared_block **link = &block->context->blocks;

	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	block->range->block = NULL;
	free(block);
}

bool suballoc_give(struct shared_block *block, uint64_t address, struct range **range)
{
	struct range *piece = suballoc_find(block, address);
	uint64_t first = (piece->base - block->range->base) / SIM_GRANULE_BYTES;

	for (uint64_t at = first; at < GRANULES && block->piece[at] == piece; at++) {
		block->piece[at] = NULL;
		block->free_granules++;
	}
	free(piece);
	*range = block->range;
	if (block->free_granules < GRANULES)
		return false;
	remove_block(block);
	return true;
}

void suballoc_forget(struct context *context)
{
	struct shared_block *block;

	while ((block = context->blocks)) {
		struct range *freed = NULL;
		for (uint32_t at = 0; at < GRANULES; at++) {
			if (!block->piece[at] || block->piece[at] == freed)
				continue;
			freed = block->piece[at];
			free(freed);
		}
		remove_block(block);
	}
}
