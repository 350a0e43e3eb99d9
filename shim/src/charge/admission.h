/*
 * Admission of an allocation: reserve, call the driver, then commit or cancel.
 *
 * Between the wrappers, which make driver calls, and region.h and ledger.h, which make none. For a
 * place that is not managed every function is a no-op; one that is not granted is refused.
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

/* After CUDA_SUCCESS exactly one of commit, settle and cancel must follow; any other code the
 * wrapper returns. Call it without locks: before a refusal it trims what the driver holds
 * unused. */
CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out);

/*
 * The driver refused a reserved allocation for lack of memory. Pause and return true if a recently
 * exited process may still hold it and the GPU's free memory still grows.
 */
struct vgpu_teardown {
	uint64_t begun_ns, grew_ns; /* 0: not yet */
	size_t free_bytes;
	unsigned int pauses;
};
bool vgpu_await_teardown(const struct vgpu_reservation *reservation,
			 struct vgpu_teardown *teardown);

/* `result = call`, repeated while an exited process may cause the driver's refusal. */
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
 * For arguments that look malformed: the driver is called with nothing reserved, so that its own
 * error code is returned, even if the size would not fit. If it succeeds all the same, settle or
 * commit refuses.
 */
CUresult vgpu_defer_to_driver(struct vgpu_reservation *reservation, CUresult result);

/* Before a refusal: has the driver release what this process's pools hold unused on the GPU; true
 * if that was anything. NULL until there is a pool. */
extern bool (*vgpu_reclaim)(int gpu);

/* Undo the reservation: the call allocated nothing. */
void vgpu_cancel(const struct vgpu_reservation *reservation);

/* The driver allocated what `key` names. CUDA_ERROR_OUT_OF_MEMORY: it cannot be entered; free it
 * with the driver, then cancel. */
CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key);

/* The same for memory that other processes hold as well (shared.h), if hold is not 0. */
CUresult vgpu_commit_shared(const struct vgpu_reservation *reservation, enum vgpu_kind kind,
			    uint64_t key, uint32_t hold);

/* End a charge that is in no ledger any more. */
void vgpu_refund_removed(const struct vgpu_charge *charge);

/* Other processes may hold what `key` names from now on; they find it by `handle_key`. */
void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key);

/*
 * For amounts that the driver reports after the call: apart from the reservation the place was
 * charged before_bytes; charge after_bytes now, the reservation's included.
 * CUDA_ERROR_OUT_OF_MEMORY: that exceeds the reservation and does not fit; nothing changed: undo
 * with the driver, then cancel.
 */
CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t before_bytes,
		     uint64_t after_bytes);

/* The driver has destroyed the context: refund everything it held. */
void vgpu_forget_context(uint32_t context);
