/*
 * May this allocation happen? Reserve, then call the driver, then commit or refund.
 *
 * Between the wrappers, which know driver calls, and region.h and ledger.h, which know none.
 */
#ifndef VGPU_ADMISSION_H
#define VGPU_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "place.h"

struct vgpu_reservation {
	int card; /* index in the grant, or one of place.h's */
	uint64_t bytes;
};

/*
 * Reserve for an allocation on the current context's device. After CUDA_SUCCESS exactly one of
 * commit and cancel must follow; after anything else, the wrapper returns it.
 */
CUresult vgpu_reserve_current(uint64_t size_bytes, struct vgpu_reservation *reservation);

/* The driver gave `address`. CUDA_ERROR_OUT_OF_MEMORY: it could not be written down; free it, then
 * cancel. */
CUresult vgpu_commit(const struct vgpu_reservation *reservation, uint64_t address);

/*
 * The driver refused a reserved allocation for want of memory: wait a little and say true, if the
 * card may still hold what a process that just died is no longer charged for. `round` starts at 0;
 * the rounds together wait at most about a second.
 */
bool vgpu_await_teardown(const struct vgpu_reservation *reservation, CUresult result, int *round);

void vgpu_cancel(const struct vgpu_reservation *reservation);

/* Free through `driver_free`, and refund if it did free. Unknown addresses just reach the driver.
 */
CUresult vgpu_free(uint64_t address, CUresult (*driver_free)(uint64_t address));

/* What a card may look like to this process: limits applied to what the driver said of it. */
struct vgpu_memory_view {
	uint64_t total_bytes, used_bytes, free_bytes;
};

/* `free_bytes` as the driver sees it: a neighbour may hold what the limit would still allow. */
struct vgpu_memory_view vgpu_view_of(int card, uint64_t total_bytes, uint64_t free_bytes);

#endif
