/*
 * May this allocation happen? Reserve, call the driver, then commit or cancel.
 *
 * Between the wrappers, which know driver calls, and region.h and ledger.h, which know none. A
 * place that is not managed makes everything here a no-op; one that is not granted is refused.
 */
#ifndef VGPU_ADMISSION_H
#define VGPU_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "charge/place.h"
#include "ledger/ledger.h"
#include "os/step.h"
#include "vgpu/cuda_abi.h"

struct vgpu_reservation {
	struct vgpu_place place;
	uint64_t bytes;
};

/* What device memory of that size costs the GPU: whole blocks. */
uint64_t vgpu_whole_blocks(int gpu, uint64_t size_bytes);

/* After CUDA_SUCCESS exactly one of commit, settle and cancel must follow; after anything else, the
 * wrapper returns it. Never under a lock: what the driver holds unused is trimmed before a refusal.
 */
CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out);

/*
 * The driver refused a reserved allocation for want of memory: wait a little and say true, if a
 * process that exited lately may still hold it, and the GPU's free memory still grows.
 */
struct vgpu_teardown {
	uint64_t begun_ns, grew_ns; /* 0: not yet */
	size_t free_bytes;
	unsigned int pauses;
};
bool vgpu_await_teardown(const struct vgpu_reservation *reservation,
			 struct vgpu_teardown *teardown);

/* `result = call`, as long as the driver's refusal may be due to a process that has exited. */
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
 * What looks malformed the driver shall refuse by its own code, also where our answer would be that
 * it does not fit: then it is asked with nothing reserved. Should it give all the same, to settle
 * or commit is to refuse.
 */
CUresult vgpu_ask_all_the_same(struct vgpu_reservation *reservation, CUresult result);

/* Nothing came of it. */
void vgpu_cancel(const struct vgpu_reservation *reservation);

/* The driver gave what `key` names. CUDA_ERROR_OUT_OF_MEMORY: it could not be written down; undo
 * with the driver, then cancel. */
CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key);

/* The same, of memory that other processes hold as well (shared.h), where hold is not 0. */
CUresult vgpu_commit_shared(const struct vgpu_reservation *reservation, enum vgpu_kind kind,
			    uint64_t key, uint32_t hold);

/* What `key` names may be held by others from now on, who find it by `handle_key`. */
void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key);

/*
 * For amounts that the driver tells after the call: apart from the reservation the place was
 * charged before_bytes, and shall now be charged after_bytes, the reservation's included.
 * CUDA_ERROR_OUT_OF_MEMORY: that is more than was reserved, and does not fit; nothing changed: undo
 * with the driver, then cancel.
 */
CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t before_bytes,
		     uint64_t after_bytes);

/*
 * A free: take before the driver frees, because the key may be given to another thread the moment
 * it is free; release after, because until then the GPU's memory is held. False, and a `charge`
 * that release ignores: not ours, the driver alone answers.
 */
bool vgpu_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
void vgpu_release(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		  CUresult driver_said);

/* The driver has destroyed the context: whatever it held is refunded. */
void vgpu_forget_context(uint32_t context);

/* What a GPU may look like to this process: limits applied to what the driver said of it. */
struct vgpu_memory_view {
	uint64_t total_bytes, used_bytes, free_bytes;
};

/* `free_bytes` as the driver sees it: a neighbour may hold what the limit would still allow. */
struct vgpu_memory_view vgpu_view_of(int gpu, uint64_t total_bytes, uint64_t free_bytes);

#endif
