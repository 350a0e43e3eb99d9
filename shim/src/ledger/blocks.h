/*
 * Blocks of device memory that small allocations share, each charged once while it contains any of
 * them.
 *
 * A block is the GPU's granule of allocation. The driver places small allocations of one context in
 * it, at multiples of VGPU_BLOCK_UNIT_BYTES; an entry has a bit for each unit that an allocation
 * begins at, so that a million of them are a few hundred entries. Part of the ledger: forgotten
 * with their context, and empty in a fork child.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"

enum { VGPU_BLOCK_UNIT_BYTES = 512, VGPU_BLOCK_UNITS = 4096 };

enum vgpu_block {
	VGPU_BLOCK_KNOWN, /* charged already */
	VGPU_BLOCK_NEW,	  /* contained no known allocation */
	VGPU_BLOCK_NO_MEMORY,
};

/*
 * An allocation of the owner (GPU and context) begins at `unit` of the block; `only_known`: not
 * entered if the block is NEW. If another owner had the block, the driver freed it without a hooked
 * call: `replaced` names the owner to refund one block; its GPU is negative if there is none.
 */
enum vgpu_block vgpu_block_enter(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
				 bool only_known, struct vgpu_charge *replaced);

/* The allocation is about to be freed: unknown from now on, its block still charged. False: no
 * known allocation begins there. */
bool vgpu_block_take(uint64_t block, unsigned int unit, struct vgpu_charge *owner);

/* After the free. True: it succeeded, and was the last one: refund the block. */
bool vgpu_block_release(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
			bool freed);

/* True if the process has a block on that GPU. */
bool vgpu_block_any(int gpu);

/* The block's size, which vgpu_ledger_forget counts for each. */
extern uint64_t vgpu_block_bytes;
