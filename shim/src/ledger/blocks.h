/*
 * Blocks of device memory that small allocations share. A block is charged once while it contains
 * any of them.
 *
 * The driver takes the GPU's memory in blocks. It places small allocations of one context in a
 * block, at multiples of VGPU_BLOCK_UNIT_BYTES. The block's entry in the ledger has a bit for each
 * unit, which is set if an allocation begins there. So a million allocations are a few hundred
 * entries.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"

enum { VGPU_BLOCK_UNIT_BYTES = 512, VGPU_BLOCK_UNITS = 4096 };

enum vgpu_block {
	VGPU_BLOCK_KNOWN, /* charged already */
	VGPU_BLOCK_NEW,	  /* the owner had no known allocation in it */
	VGPU_BLOCK_NO_MEMORY,
};

/* Enter an allocation of the owner (GPU and context) that begins at `unit` of the block.
 * `only_known`: do not enter it if the result is VGPU_BLOCK_NEW. If another owner had the block,
 * the driver had freed it without a hooked call. Then refund `replaced`, the other owner; its GPU
 * is negative if there was none. */
enum vgpu_block vgpu_block_enter(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
				 bool only_known, struct vgpu_charge *replaced);

/* Forget an allocation before the driver frees it. The block stays charged. False: no known
 * allocation begins there. */
bool vgpu_block_take(uint64_t block, unsigned int unit, struct vgpu_charge *owner);

/* Finish vgpu_block_take after the driver's call. True: the block has no other allocation, so
 * refund the block. If `freed` is false, the driver failed, and the allocation is entered again. */
bool vgpu_block_release(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
			bool freed);

/* True if the process has a block on that GPU. */
bool vgpu_block_any(int gpu);

/* The size of a block, which vgpu_ledger_forget counts for each block. */
extern uint64_t vgpu_block_bytes;
