/*
 * Admission of an allocation: reserve, call the driver, then commit or cancel.
 *
 * The wrappers call these functions and the driver. region.h and ledger.h, which these functions
 * use, make no driver calls. Where no limit applies to the place, every function does nothing.
 * Where its GPU is not granted, reserving is refused.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"
#include "os/step.h"
#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

struct vgpu_reservation {
	struct vgpu_place place;
	uint64_t bytes;
};

/* After CUDA_SUCCESS exactly one of commit, settle and cancel must follow. The wrapper returns any
 * other code to the program. Call it without locks: before a refusal the driver may have to release
 * unused memory. */
CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out);

/* Call it when the driver refused a reserved allocation for lack of memory. If a recently exited
 * process may still hold memory, and the GPU's free memory still grows, pause and return true. */
struct vgpu_teardown {
	uint64_t begun_ns, grew_ns; /* 0: not yet */
	size_t free_bytes;
	unsigned int pauses;
};
bool vgpu_await_teardown(const struct vgpu_reservation *reservation,
			 struct vgpu_teardown *teardown);

/* `result = call`, repeated while the driver may refuse because of an exited process's memory. */
#define VGPU_CALL_RESERVED(result, reservation, call)                                              \
	do {                                                                                       \
		struct vgpu_teardown vgpu_teardown_ = {0};                                         \
		do                                                                                 \
			(result) = (call);                                                         \
		while ((result) == CUDA_ERROR_OUT_OF_MEMORY &&                                     \
		       vgpu_await_teardown((reservation), &vgpu_teardown_));                       \
		VGPU_AT(ADMIT_CALLED);                                                             \
	} while (0)

/*
 * For arguments that look malformed, whose size may not fit. It makes `result` a success with
 * nothing reserved, so that the driver is called and the program gets the driver's error code. If
 * the driver accepts them all the same, settle or commit refuses.
 */
CUresult vgpu_defer_to_driver(struct vgpu_reservation *reservation, CUresult result);

/* Called before a refusal: makes the driver release what this process's pools hold unused on the
 * GPU. True if anything was released. NULL until there is a pool. */
extern bool (*vgpu_reclaim)(int gpu);

/* Undo the reservation, because the call allocated nothing. */
void vgpu_cancel(const struct vgpu_reservation *reservation);

/* Enter the charge for what the driver allocated, under `key`. CUDA_ERROR_OUT_OF_MEMORY: there is
 * no space for the entry. Then free the memory with the driver, and cancel. */
CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key);

/* The same. If hold is not 0, other processes hold the memory too (shared.h). */
CUresult vgpu_commit_shared(const struct vgpu_reservation *reservation, enum vgpu_kind kind,
			    uint64_t key, uint32_t hold);

/* Refund a charge that has been removed from the ledger. */
void vgpu_refund_removed(const struct vgpu_charge *charge);

/* From now on other processes may hold the memory of `key`. They find it by `handle_key`. */
void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key);

/*
 * For amounts that the driver reports after the call: before_bytes were charged to the place
 * without the reservation, after_bytes must be charged now. CUDA_ERROR_OUT_OF_MEMORY: more is
 * needed than was reserved, and it does not fit. Then nothing has changed: undo the call with the
 * driver, and cancel.
 */
CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t before_bytes,
		     uint64_t after_bytes);

/* The driver has destroyed the context. Refund everything that was allocated in it. */
void vgpu_forget_context(uint32_t context);
