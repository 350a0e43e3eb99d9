/*
 * Blocks of device memory that small allocations share, each charged once while any of them lives.
 *
 * A block is what the GPU gives at once. Its driver places small allocations of one context in it,
 * at multiples of VGPU_BLOCK_PLACE_BYTES; an entry knows by a bit for each place which of them
 * live, so that a million of them are a few hundred entries. Part of the ledger: forgotten with
 * their context, and empty in a fork child.
 */
#ifndef VGPU_BLOCKS_H
#define VGPU_BLOCKS_H

#include "ledger/ledger.h"

enum { VGPU_BLOCK_PLACE_BYTES = 512, VGPU_BLOCK_PLACES = 4096 };

enum vgpu_block {
	VGPU_BLOCK_KNOWN, /* charged already: nothing more to pay */
	VGPU_BLOCK_NEW,	  /* nobody of ours was in it */
	VGPU_BLOCK_NO_MEMORY,
};

/*
 * An allocation of the owner's (GPU and context) begins at `place` of the block; `only_known`: not
 * entered where that is NEW. What was known of the block by another owner, the driver freed behind
 * our back: `replaced` says whom to refund one block, its GPU is negative for nobody.
 */
enum vgpu_block vgpu_block_enter(uint64_t block, unsigned int place,
				 const struct vgpu_charge *owner, bool only_known,
				 struct vgpu_charge *replaced);

/* The allocation is about to be freed: unknown from now on, its block still charged. False: no
 * allocation of ours begins there. */
bool vgpu_block_take(uint64_t block, unsigned int place, struct vgpu_charge *owner);

/* What became of it. True: it was freed, and it was the last: refund the block. */
bool vgpu_block_release(uint64_t block, unsigned int place, const struct vgpu_charge *owner,
			bool freed);

/* Whether the process has any block on that GPU. */
bool vgpu_block_any(int gpu);

/* What a block is: how much vgpu_ledger_forget counts for each. */
extern uint64_t vgpu_block_bytes;

#endif
