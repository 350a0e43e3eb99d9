/*
 * Small allocations in blocks that their context owns, as a GPU's driver places them.
 *
 * A block is the GPU's unit of allocation, 2 MiB. A context's allocations of up to half a
 * block share blocks. Each takes the first gap, in multiples of 512 bytes. The caller locks.
 */
#ifndef SIMGPU_SUBALLOC_H
#define SIMGPU_SUBALLOC_H

#include "base/driver.h"

struct shared_block;

/* Allocations of different kinds share no block. */
enum block_kind { BLOCK_PLAIN, BLOCK_LOW, BLOCK_MANAGED };

/* Returns true if an allocation of that size shares a block. The GPU's unit must be 2 MiB. */
bool suballoc_applies(const struct device *device, uint64_t bytes);

/* Allocates in the context's blocks. Returns the address, or 0 if none has space. */
uint64_t suballoc_take(struct context *context, enum block_kind kind, uint64_t bytes);

/* Adds a block, which consists of `range`, to the context's blocks. */
void suballoc_add(struct context *context, enum block_kind kind, struct range *range);

/* Returns the allocation in the block that contains `address`, or NULL. */
struct range *suballoc_find(const struct shared_block *block, uint64_t address);

/* Ends the allocation at `address`. Returns true if the block has no other allocation. Then the
 * caller frees `*range`, the range of the block. */
bool suballoc_give(struct shared_block *block, uint64_t address, struct range **range);

/* Forgets the blocks of an ended context. The arena's owner frees their ranges. */
void suballoc_forget(struct context *context);

#endif
