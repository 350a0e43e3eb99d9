#include "charge/admission.h"

#include "ledger/ledger.h"
#include "loader/capture_mode.h"
#include "loader/hooks.h"
#include "os/step.h"
#include "region/process.h"
#include "region/shared.h"
#include "vgpu/region.h"

/* After this time an exited process is assumed to hold nothing. The driver needs seconds to free
 * 100 GB in thousands of mappings. */
#define TEARDOWN_NS    UINT64_C(30000000000)
#define STILL_NS       UINT64_C(5000000000) /* longest wait without growth of free memory */
#define FIRST_PAUSE_NS UINT64_C(1000000)    /* doubled each time, up to 64 times as long */
#define MAX_DOUBLINGS  6

bool (*vgpu_reclaim)(int gpu);

CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out)
{
	bool (*reclaim)(int gpu);

	*out = (struct vgpu_reservation){.place = place, .bytes = bytes};
	if (place.gpu == VGPU_GPU_UNMANAGED)
		return CUDA_SUCCESS;
	if (place.gpu == VGPU_GPU_NOT_GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (vgpu_reserve(place.gpu, bytes) != VGPU_OK) {
		reclaim = __atomic_load_n(&vgpu_reclaim, __ATOMIC_ACQUIRE);
		if (!reclaim || !reclaim(place.gpu) || vgpu_reserve(place.gpu, bytes) != VGPU_OK)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	VGPU_AT(ADMIT_RESERVED);
	return CUDA_SUCCESS;
}

CUresult vgpu_defer_to_driver(struct vgpu_reservation *reservation, CUresult result)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY && reservation->place.gpu >= 0) {
		reservation->bytes = 0;
		return CUDA_SUCCESS;
	}
	return result;
}

/* Whether free memory has grown, or cannot be queried (while a context is created). */
static bool has_grown(struct vgpu_teardown *teardown)
{
	size_t free_bytes = 0, total_bytes;
	int mode = vgpu_capture_mode_relax();
	CUresult result = real_cuMemGetInfo_v2(&free_bytes, &total_bytes);
	bool grown = result != CUDA_SUCCESS || free_bytes > teardown->free_bytes;

	vgpu_capture_mode_restore(mode);
	teardown->free_bytes = free_bytes;
	return grown;
}

bool vgpu_await_teardown(const struct vgpu_reservation *reservation, struct vgpu_teardown *teardown)
{
	/* For each GPU, the exit for which a call has already waited in full. No later call waits
	 * for the same exit. */
	static uint64_t done_ns[VGPU_ENVIRONMENT_MAX_GPUS];
	int gpu = reservation->place.gpu;
	uint64_t exit_ns, now_ns;

	if (gpu < 0)
		return false;
	exit_ns = vgpu_last_exit_ns(gpu);
	now_ns = vgpu_now_ns();
	if (now_ns - exit_ns > TEARDOWN_NS ||
	    __atomic_load_n(&done_ns[gpu], __ATOMIC_RELAXED) == exit_ns)
		return false;
	if (!teardown->begun_ns)
		teardown->begun_ns = now_ns;
	if (has_grown(teardown) || !teardown->grew_ns)
		teardown->grew_ns = now_ns;
	if (now_ns - teardown->begun_ns > TEARDOWN_NS || now_ns - teardown->grew_ns > STILL_NS) {
		__atomic_store_n(&done_ns[gpu], exit_ns, __ATOMIC_RELAXED);
		return false;
	}
	vgpu_pause(FIRST_PAUSE_NS << teardown->pauses);
	teardown->pauses += teardown->pauses < MAX_DOUBLINGS;
	return true;
}

void vgpu_cancel(const struct vgpu_reservation *reservation)
{
	if (reservation->place.gpu >= 0 && reservation->bytes)
		vgpu_refund(reservation->place.gpu, reservation->bytes);
	VGPU_AT(ADMIT_CANCELLED);
}

void vgpu_refund_removed(const struct vgpu_charge *charge)
{
	if (charge->hold)
		vgpu_shared_leave(charge->hold);
	else
		vgpu_refund(charge->gpu, charge->bytes);
}

CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key,
		     uint32_t hold)
{
	struct vgpu_charge charge = {reservation->bytes, reservation->place.gpu,
				     reservation->place.context, hold};
	struct vgpu_charge replaced;
	enum vgpu_ledger_put put;

	if (reservation->place.gpu < 0)
		return CUDA_SUCCESS;
	put = vgpu_ledger_put(kind, key, charge, &replaced);
	VGPU_AT(ADMIT_COMMITTED);
	if (put == VGPU_LEDGER_REPLACED)
		vgpu_refund_removed(&replaced);
	return put == VGPU_LEDGER_NO_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key)
{
	struct vgpu_charge charge, replaced;

	if (!vgpu_ledger_take(kind, key, &charge))
		return;
	if (!charge.hold)
		charge.hold = vgpu_shared_export(
		    (struct vgpu_shared_charge){charge.gpu, charge.bytes}, handle_key);
	(void)vgpu_ledger_put(kind, key, charge, &replaced);
}

CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t bytes)
{
	struct vgpu_reservation excess;

	if (bytes > reservation->bytes)
		return vgpu_reserve_at(reservation->place, bytes - reservation->bytes, &excess);
	if (bytes < reservation->bytes)
		vgpu_refund(reservation->place.gpu, reservation->bytes - bytes);
	return CUDA_SUCCESS;
}

void vgpu_forget_context(uint32_t context)
{
	uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];

	vgpu_ledger_forget(context, bytes, vgpu_shared_leave);
	for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		if (bytes[gpu])
			vgpu_refund(gpu, bytes[gpu]);
}
