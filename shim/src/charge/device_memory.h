/*
 * The charge for device memory: the blocks of the GPU that it lies in, if not charged yet.
 *
 * A driver places allocations smaller than a block into the context's blocks while they have space.
 * So reserve for the worst case, check where the memory lies, and refund the excess. If the process
 * has blocks, and the use is far below the limit or no other block fits, a small allocation is made
 * without a reservation: inside a known block it costs nothing; for another block one is reserved
 * afterwards, or the allocation is freed again.
 */
#pragma once

#include "charge/admission.h"

/* Reserve for an allocation in the current context. After CUDA_SUCCESS, keep or cancel. */
CUresult vgpu_reserve_memory(uint64_t size_bytes, struct vgpu_reservation *reservation);

/* The driver allocated size_bytes at `address`. CUDA_ERROR_OUT_OF_MEMORY: free them, then
 * cancel. */
CUresult vgpu_keep_memory(struct vgpu_reservation *reservation, uint64_t address,
			  uint64_t size_bytes);

/* Take an allocation out before its free, and release it after, if it is in a block; false if it is
 * not. */
bool vgpu_take_memory(uint64_t address, struct vgpu_charge *charge);
bool vgpu_release_memory(uint64_t address, const struct vgpu_charge *charge, bool freed);

/* Bytes of the whole blocks that device memory of that size takes. */
uint64_t vgpu_whole_blocks(int gpu, uint64_t size_bytes);

/* The GPU's size as shown to this process: the limits applied to what the driver reported. */
struct vgpu_memory_view {
	uint64_t total_bytes, used_bytes, free_bytes;
};

/* `free_bytes` as the driver reports it: a neighbour may hold what the limit would still allow. */
struct vgpu_memory_view vgpu_view_of(int gpu, uint64_t total_bytes, uint64_t free_bytes);
