/* See admission.h. */
#include "admission.h"

#include <stdbool.h>
#include <time.h>

#include "ledger.h"
#include "vgpu/region.h"

enum {
	ALLOCATION_GRANULE_BYTES = 512, /* the driver's alignment of device memory */
	TEARDOWN_NS = 1000000000,
	FIRST_PAUSE_NS = 1000000, /* doubled each time: 1 + 2 + ... + 512 ms */
	PAUSES = 10,
};

static uint64_t min_bytes(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* What an allocation is charged; a size past the end of the address space fits no limit. */
static uint64_t charge_bytes(uint64_t size_bytes)
{
	uint64_t mask = ALLOCATION_GRANULE_BYTES - 1;

	return size_bytes > UINT64_MAX - mask ? UINT64_MAX : (size_bytes + mask) & ~mask;
}

/* The largest allocation whose charge fits: what is called free, a program may ask for at once. */
static uint64_t allocatable_bytes(uint64_t left_bytes)
{
	return left_bytes & ~(uint64_t)(ALLOCATION_GRANULE_BYTES - 1);
}

CUresult vgpu_reserve_current(uint64_t size_bytes, struct vgpu_reservation *reservation)
{
	struct vgpu_place place;
	CUresult result = vgpu_place_current(&place);

	reservation->card = place.card;
	reservation->bytes = charge_bytes(size_bytes);
	if (result != CUDA_SUCCESS || reservation->card == VGPU_CARD_UNMANAGED)
		return result;
	if (reservation->card == VGPU_CARD_NOT_GRANTED ||
	    vgpu_reserve(reservation->card, reservation->bytes) != VGPU_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

bool vgpu_await_teardown(const struct vgpu_reservation *reservation, CUresult result, int *round)
{
	struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS << *round};

	if (result != CUDA_ERROR_OUT_OF_MEMORY || reservation->card < 0 || *round == PAUSES ||
	    !vgpu_dropped_within(reservation->card, TEARDOWN_NS))
		return false;
	++*round;
	nanosleep(&pause, NULL);
	return true;
}

void vgpu_cancel(const struct vgpu_reservation *reservation)
{
	if (reservation->card >= 0)
		vgpu_refund(reservation->card, reservation->bytes);
}

CUresult vgpu_commit(const struct vgpu_reservation *reservation, uint64_t address)
{
	struct vgpu_charge charge = {.bytes = reservation->bytes, .card = reservation->card};
	struct vgpu_charge replaced;

	if (reservation->card < 0)
		return CUDA_SUCCESS;
	switch (vgpu_ledger_put(address, charge, &replaced)) {
	case VGPU_LEDGER_ADDED:
		return CUDA_SUCCESS;
	case VGPU_LEDGER_REPLACED:
		vgpu_refund(replaced.card, replaced.bytes);
		return CUDA_SUCCESS;
	case VGPU_LEDGER_NO_MEMORY:
		break;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * The entry is taken before the driver frees, because the address may be given to another thread
 * the moment it is free; the charge is refunded after, because until then the card's memory is
 * held.
 */
CUresult vgpu_free(uint64_t address, CUresult (*driver_free)(uint64_t address))
{
	struct vgpu_charge charge, replaced;
	bool known = vgpu_ledger_take(address, &charge);
	CUresult result = driver_free(address);

	if (!known)
		return result;
	if (result == CUDA_SUCCESS)
		vgpu_refund(charge.card, charge.bytes);
	else
		(void)vgpu_ledger_put(address, charge,
				      &replaced); /* if it fails: charged until we end */
	return result;
}

struct vgpu_memory_view vgpu_view_of(int card, uint64_t total_bytes, uint64_t free_bytes)
{
	struct vgpu_memory_view view = {0};

	if (card < 0)
		return view;
	uint64_t limit_bytes = vgpu_limit_bytes(card);
	uint64_t used_bytes = vgpu_used_bytes(card);
	uint64_t left_bytes = used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
	view.total_bytes = min_bytes(limit_bytes, total_bytes);
	view.used_bytes = min_bytes(used_bytes, view.total_bytes);
	view.free_bytes = min_bytes(allocatable_bytes(left_bytes), free_bytes);
	return view;
}
