/*
 * Small allocations in blocks that their context owns, as a GPU's driver places them.
 *
 * A block is the GPU's unit of allocation, 2 MiB; up to half of one an allocation shares it with
 * others of its context, at multiples of 512 bytes, in the first gap that fits. The caller locks.
 */
#ifndef SIMGPU_SUBALLOC_H
#define SIMGPU_SUBALLOC_H

#include "base/driver.h"

struct shared_block;

/* Allocations of different kinds share no block. */
enum block_kind { BLOCK_PLAIN, BLOCK_LOW, BLOCK_MANAGED };

/* True if so small an allocation shares a block on that GPU; not if its unit is smaller. */
bool suballoc_applies(const struct device *device, uint64_t bytes);

/* The address in a block that the context has, or 0 if none has space. */
uint64_t suballoc_take(struct context *context, enum block_kind kind, uint64_t bytes);

/* From now on `range`, one block of the arena's, is shared. */
void suballoc_add(struct context *context, enum block_kind kind, struct range *range);

/* The allocation within the block that holds `address`, or NULL. */
struct range *suballoc_find(const struct shared_block *block, uint64_t address);

/* Ends the allocation at `address`. True: it was the block's last, and the caller frees its
 * range. */
bool suballoc_give(struct shared_block *block, uint64_t address, struct range **range);

/* The context has ended: forget its blocks. Their ranges are the arena's. */
void suballoc_forget(struct context *context);

#endif
