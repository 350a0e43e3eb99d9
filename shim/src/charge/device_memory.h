/*
 * The charge for device memory. Each block of the GPU in which allocations lie is charged once.
 *
 * A driver places allocations smaller than a block into the context's existing blocks while those
 * have space. So the library reserves for the worst case, checks where the memory lies, and refunds
 * the excess. A small allocation is made without a reservation if the process has blocks and either
 * the use is far below the limit or no further block fits. If it lies in a known block, it costs
 * nothing. Otherwise its block is reserved afterwards. If the block does not fit, the allocation is
 * freed.
 */
#pragma once

#include "charge/admission.h"

/* Reserve for an allocation in the current context. After CUDA_SUCCESS vgpu_keep_memory or
 * vgpu_cancel must follow. */
CUresult vgpu_reserve_memory(uint64_t size_bytes, struct vgpu_reservation *reservation);

/* Charge what the driver allocated at `address`. On CUDA_ERROR_OUT_OF_MEMORY the caller frees the
 * memory with the driver, and cancels. */
CUresult vgpu_keep_memory(struct vgpu_reservation *reservation, uint64_t address,
			  uint64_t size_bytes);

/* Call vgpu_take_memory before the driver frees memory, and vgpu_release_memory after. False: the
 * allocation is not in a shared block. */
bool vgpu_take_memory(uint64_t address, struct vgpu_charge *charge);
bool vgpu_release_memory(uint64_t address, const struct vgpu_charge *charge, bool freed);

/* The size of `size_bytes` of device memory, rounded up to whole blocks. */
uint64_t vgpu_whole_blocks(int gpu, uint64_t size_bytes);

/* The GPU's memory sizes as this process sees them: the driver's figures, reduced by the limit. */
struct vgpu_memory_view {
	uint64_t total_bytes, used_bytes, free_bytes;
};

/* The result has at most the driver's `free_bytes`, because other containers use memory too. */
struct vgpu_memory_view vgpu_view_of(int gpu, uint64_t total_bytes, uint64_t free_bytes);
