/*
 * What device memory costs: the blocks of the GPU that it lies in and that are not charged yet.
 *
 * A driver places allocations smaller than a block in blocks that the context has, if there is
 * room. So reserve for the worst case, look where the memory lies, and give back what was too much.
 * If the process has blocks, and far below the limit or where no other block fits, a small
 * allocation goes to the driver without: what lands in a known block costs nothing, for what does
 * not a block is reserved then, or it is freed again.
 */
#ifndef VGPU_DEVICE_MEMORY_H
#define VGPU_DEVICE_MEMORY_H

#include "charge/admission.h"

/* Reserve for an allocation in the current context. After CUDA_SUCCESS, keep or cancel. */
CUresult vgpu_reserve_memory(uint64_t size_bytes, struct vgpu_reservation *reservation);

/* The driver gave size_bytes at `address`. CUDA_ERROR_OUT_OF_MEMORY: free them, then cancel. */
CUresult vgpu_keep_memory(struct vgpu_reservation *reservation, uint64_t address,
			  uint64_t size_bytes);

/* admission.h's take, of VGPU_KIND_MEMORY; and release, of what is in a block: false where it is
 * not. */
bool vgpu_take_memory(uint64_t address, struct vgpu_charge *charge);
bool vgpu_release_memory(uint64_t address, const struct vgpu_charge *charge, bool freed);

/* The largest allocation that fits into so much. */
uint64_t vgpu_allocatable_bytes(uint64_t left_bytes);

#endif
