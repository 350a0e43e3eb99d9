/*
 * The charge for device memory: each block of the GPU in which it lies, charged once.
 *
 * A driver places allocations smaller than a block into blocks that the context has, while they
 * have space. So reserve for the worst case, check where the memory lies, and refund the excess. A
 * small allocation is made without a reservation if the process has blocks and either the use is
 * far below the limit or no further block fits. In a known block it costs nothing. In another block
 * that block is reserved afterwards, or the allocation is freed again.
 */
#pragma once

#include "charge/admission.h"

/* Reserve for an allocation in the current context. After CUDA_SUCCESS keep or cancel it. */
CUresult vgpu_reserve_memory(uint64_t size_bytes, struct vgpu_reservation *reservation);

/* Enter what the driver allocated at `address`. CUDA_ERROR_OUT_OF_MEMORY: free it with the driver,
 * then cancel. */
CUresult vgpu_keep_memory(struct vgpu_reservation *reservation, uint64_t address,
			  uint64_t size_bytes);

/* For an allocation in a shared block: take it out before its free, and release it after. False: it
 * is not in such a block. */
bool vgpu_take_memory(uint64_t address, struct vgpu_charge *charge);
bool vgpu_release_memory(uint64_t address, const struct vgpu_charge *charge, bool freed);

/* The size of `size_bytes` of device memory, rounded up to whole blocks. */
uint64_t vgpu_whole_blocks(int gpu, uint64_t size_bytes);

/* The GPU's sizes as shown to this process: what the driver reported, reduced by the limits. */
struct vgpu_memory_view {
	uint64_t total_bytes, used_bytes, free_bytes;
};

/* The free memory shown is at most `free_bytes`: other containers may use what the limit allows. */
struct vgpu_memory_view vgpu_view_of(int gpu, uint64_t total_bytes, uint64_t free_bytes);
