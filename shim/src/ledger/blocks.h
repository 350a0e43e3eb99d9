/*
 * Blocks of device memory that small allocations share. A block is charged once while it contains
 * any of them.
 *
 * A block is the unit in which the GPU's memory is allocated. The driver places small allocations
 * of one context in it, at multiples of VGPU_BLOCK_UNIT_BYTES. The block's entry has a bit for each
 * unit, set where an allocation begins. So a million allocations are a few hundred entries. The
 * entries are part of the ledger: they are forgotten with their context, and a fork child has none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"

enum { VGPU_BLOCK_UNIT_BYTES = 512, VGPU_BLOCK_UNITS = 4096 };

enum vgpu_block {
	VGPU_BLOCK_KNOWN, /* charged already */
	VGPU_BLOCK_NEW,	  /* it contained no known allocation */
	VGPU_BLOCK_NO_MEMORY,
};

/*
 * Enter an allocation of the owner (GPU and context) that begins at `unit` of the block.
 * `only_known`: do not enter it if the block is NEW. If another owner had the block, the driver
 * freed that block without a hooked call: `replaced` is then the owner to refund. Its GPU is
 * negative if there is none.
 */
enum vgpu_block vgpu_block_enter(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
				 bool only_known, struct vgpu_charge *replaced);

/* Call it before the free: the allocation is forgotten, but its block stays charged. False: no
 * known allocation begins there. */
bool vgpu_block_take(uint64_t block, unsigned int unit, struct vgpu_charge *owner);

/* Call it after the free. True: the last allocation is freed, so refund the block. */
bool vgpu_block_release(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
			bool freed);

/* True if the process has a block on that GPU. */
bool vgpu_block_any(int gpu);

/* The size of a block. vgpu_ledger_forget returns it for each block. */
extern uint64_t vgpu_block_bytes;
