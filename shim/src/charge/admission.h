/*
 * Admission of an allocation: reserve, call the driver, then commit or cancel.
 *
 * The wrappers call these functions and the driver. The functions of region.h and ledger.h, which
 * are called here, make no driver call. If no limit applies to the place, every function does
 * nothing. If the place's GPU is not granted, reserving is refused.
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

/* Reserve `bytes`. After CUDA_SUCCESS exactly one of commit, settle and cancel must follow. The
 * wrapper returns any other code to the program. The caller must hold no lock, because vgpu_reclaim
 * calls the driver before a refusal. */
CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out);

/* The state of one wait for the memory of exited processes. */
struct vgpu_teardown {
	uint64_t begun_ns, grew_ns; /* begin of the wait, last growth of free memory; 0: not yet */
	size_t free_bytes;
	unsigned int pauses;
};
/* Call it when the driver refused a reserved allocation for lack of memory. If a recently exited
 * process may still hold memory, and the GPU's free memory still grows, pause and return true. */
bool vgpu_await_teardown(const struct vgpu_reservation *reservation,
			 struct vgpu_teardown *teardown);

/* `result = call`. The call is repeated while vgpu_await_teardown returns true. */
#define VGPU_CALL_RESERVED(result, reservation, call)                                              \
	do {                                                                                       \
		struct vgpu_teardown vgpu_teardown_ = {0};                                         \
		do                                                                                 \
			(result) = (call);                                                         \
		while ((result) == CUDA_ERROR_OUT_OF_MEMORY &&                                     \
		       vgpu_await_teardown((reservation), &vgpu_teardown_));                       \
		VGPU_AT(ADMIT_CALLED);                                                             \
	} while (0)

/* Call it after reserving for arguments that look malformed. If their size did not fit, return
 * success with nothing reserved, so that the wrapper calls the driver and the program gets the
 * driver's error code. If the driver accepts the arguments, the wrapper undoes the call. */
CUresult vgpu_defer_to_driver(struct vgpu_reservation *reservation, CUresult result);

/* Makes the driver release what this process's pools hold unused on the GPU, before a refusal. True
 * if anything was released. The pointer is NULL until there is a pool. */
extern bool (*vgpu_reclaim)(int gpu);

/* Undo the reservation, because the call allocated nothing. */
void vgpu_cancel(const struct vgpu_reservation *reservation);

/* Enter the charge for what the driver allocated in the ledger, under `key`. On
 * CUDA_ERROR_OUT_OF_MEMORY the ledger has no space. The caller then frees the memory with the
 * driver, and cancels. If `hold` is not 0, that shared slot has the charge (shared.h). */
CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key,
		     uint32_t hold);

/* Refund a charge that has been removed from the ledger. */
void vgpu_refund_removed(const struct vgpu_charge *charge);

/* Move the charge of `key` to a shared slot, which other processes find by `handle_key`. */
void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key);

/* Charge `bytes` in place of the reservation, on a granted GPU, after the driver's call. On
 * CUDA_ERROR_OUT_OF_MEMORY the excess over the reservation does not fit, and nothing has changed.
 * The caller then undoes the call with the driver, and cancels. */
CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t bytes);

/* Refund everything that was allocated in the context, after the driver has destroyed it. */
void vgpu_forget_context(uint32_t context);
