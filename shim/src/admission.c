/* See admission.h. */
#include "admission.h"

#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "claims.h"
#include "device_memory.h"
#include "ledger.h"
#include "lives.h"
#include "measure.h"
#include "meter.h"
#include "shared.h"
#include "step.h"
#include "stream_frees.h"
#include "vgpu/region.h"

enum {
	TEARDOWN_NS = 1000000000,
	FIRST_PAUSE_NS = 1000000, /* doubled each time: 1 + 2 + ... + 512 ms */
	PAUSES = 10,
};

static uint64_t min_bytes(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Before a refusal: what the process holds unused, what has gone without our being told, what
 * streams free, and what a context was charged for the dead. */
static bool reserve(int card, uint64_t bytes)
{
	bool more;
	int round = 0;

	if (vgpu_reserve(card, bytes) == VGPU_OK)
		return true;
	more = vgpu_meters_trim(card);
	more |= vgpu_drop_closed_exports();
	if (more && vgpu_reserve(card, bytes) == VGPU_OK)
		return true;
	while (bytes <= vgpu_limit_bytes(card) && vgpu_await_frees(card, bytes, &round))
		if (vgpu_reserve(card, bytes) == VGPU_OK)
			return true;
	while (bytes <= vgpu_limit_bytes(card) && vgpu_correct_measured(card))
		if (vgpu_reserve(card, bytes) == VGPU_OK)
			return true;
	return false;
}

CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out)
{
	*out = (struct vgpu_reservation){.place = place, .bytes = bytes};
	if (place.card == VGPU_CARD_UNMANAGED)
		return CUDA_SUCCESS;
	if (place.card == VGPU_CARD_NOT_GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!reserve(place.card, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	VGPU_AT(ADMIT_RESERVED);
	return CUDA_SUCCESS;
}

CUresult vgpu_ask_all_the_same(struct vgpu_reservation *reservation, CUresult result)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY && reservation->place.card >= 0) {
		reservation->bytes = 0;
		return CUDA_SUCCESS;
	}
	return result;
}

bool vgpu_await_teardown(const struct vgpu_reservation *reservation, CUresult result, int *round)
{
	struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS << *round};

	if (result != CUDA_ERROR_OUT_OF_MEMORY || reservation->place.card < 0 || *round == PAUSES ||
	    !vgpu_dropped_within(reservation->place.card, TEARDOWN_NS))
		return false;
	++*round;
	syscall(SYS_nanosleep, &pause, NULL);
	return true;
}

void vgpu_cancel(const struct vgpu_reservation *reservation)
{
	if (reservation->place.card >= 0 && reservation->bytes)
		vgpu_refund(reservation->place.card, reservation->bytes);
	VGPU_AT(ADMIT_CANCELLED);
}

static void give_back(const struct vgpu_charge *charge)
{
	if (charge->hold)
		vgpu_shared_leave(charge->hold);
	else
		vgpu_refund(charge->card, charge->bytes);
}

CUresult vgpu_commit_shared(const struct vgpu_reservation *reservation, enum vgpu_kind kind,
			    uint64_t key, uint32_t hold)
{
	struct vgpu_charge charge = {reservation->bytes, reservation->place.card,
				     reservation->place.context, hold};
	struct vgpu_charge replaced;

	if (reservation->place.card < 0)
		return CUDA_SUCCESS;
	switch (vgpu_ledger_put(kind, key, charge, &replaced)) {
	case VGPU_LEDGER_ADDED:
		VGPU_AT(ADMIT_COMMITTED);
		return CUDA_SUCCESS;
	case VGPU_LEDGER_REPLACED:
		give_back(&replaced);
		return CUDA_SUCCESS;
	case VGPU_LEDGER_NO_MEMORY:
		break;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_commit(const struct vgpu_reservation *reservation, enum vgpu_kind kind, uint64_t key)
{
	return vgpu_commit_shared(reservation, kind, key, 0);
}

void vgpu_share(enum vgpu_kind kind, uint64_t key, uint64_t handle_key)
{
	struct vgpu_charge charge, replaced;

	if (!vgpu_ledger_take(kind, key, &charge))
		return;
	if (!charge.hold)
		charge.hold = vgpu_shared_export(
		    (struct vgpu_shared_charge){charge.card, charge.bytes}, handle_key);
	(void)vgpu_ledger_put(kind, key, charge, &replaced);
}

CUresult vgpu_settle(const struct vgpu_reservation *reservation, uint64_t before_bytes,
		     uint64_t after_bytes)
{
	int card = reservation->place.card;
	uint64_t charged_bytes = before_bytes + reservation->bytes;

	if (card < 0 || charged_bytes == after_bytes)
		return CUDA_SUCCESS;
	if (charged_bytes > after_bytes)
		vgpu_refund(card, charged_bytes - after_bytes);
	else if (vgpu_reserve(card, after_bytes - charged_bytes) != VGPU_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

bool vgpu_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge)
{
	bool known;

	*charge = (struct vgpu_charge){.card = VGPU_CARD_UNMANAGED};
	known = kind == VGPU_KIND_MEMORY ? vgpu_take_memory(key, charge)
					 : vgpu_ledger_take(kind, key, charge);
	VGPU_AT(FREE_TAKEN);
	return known;
}

/* A key that has been given again is what another call gave back meanwhile. */
static void put_back(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge)
{
	struct vgpu_charge gone;

	switch (vgpu_ledger_put_back(kind, key, *charge)) {
	case VGPU_LEDGER_ADDED:
		if (!vgpu_place_lives(charge->context) && vgpu_ledger_take(kind, key, &gone))
			give_back(&gone);
		break;
	case VGPU_LEDGER_REPLACED:
		give_back(charge);
		break;
	case VGPU_LEDGER_NO_MEMORY:
		break;
	}
}

void vgpu_release(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		  CUresult driver_said)
{
	if (charge->card < 0)
		return;
	VGPU_AT(FREE_CALLED);
	if (kind == VGPU_KIND_MEMORY &&
	    vgpu_release_memory(key, charge, driver_said == CUDA_SUCCESS)) {
		VGPU_AT(FREE_REFUNDED);
		return;
	}
	/* A free that the driver refuses may have come too late: the context took the memory, or
	 * does just now. What cannot be written down is charged until we end. */
	if (driver_said == CUDA_SUCCESS || !vgpu_place_lives(charge->context))
		give_back(charge);
	else
		put_back(kind, key, charge);
	VGPU_AT(FREE_REFUNDED);
}

static int64_t adjust_measured(struct vgpu_place place, int64_t delta_bytes)
{
	struct vgpu_charge owner = {.card = place.card, .context = place.context};
	uint64_t key = (uint64_t)place.context << 32 | (uint32_t)place.card;

	return vgpu_ledger_adjust(VGPU_KIND_MEASURED, key, owner, delta_bytes);
}

void vgpu_charge_measured(struct vgpu_place place, int64_t delta_bytes)
{
	int64_t changed_bytes;

	if (place.card < 0)
		return;
	changed_bytes = adjust_measured(place, delta_bytes);
	if (changed_bytes > 0)
		(void)vgpu_charge(place.card, (uint64_t)changed_bytes);
	else if (changed_bytes < 0)
		vgpu_refund(place.card, -(uint64_t)changed_bytes);
}

/* What cannot be written down stays charged until the process ends. */
void vgpu_commit_measured(struct vgpu_reservation *reservation, struct vgpu_place place,
			  uint64_t bytes)
{
	(void)adjust_measured(place, (int64_t)bytes);
	reservation->bytes -= bytes;
}

void vgpu_forget_context(uint32_t context)
{
	uint64_t bytes[VGPU_MOST_CARDS];

	vgpu_ledger_forget(context, bytes, vgpu_shared_leave);
	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (bytes[card])
			vgpu_refund(card, bytes[card]);
}

void vgpu_forget_unowned(int card)
{
	uint64_t key = (uint32_t)card;
	struct vgpu_charge charge;

	if (vgpu_ledger_has(VGPU_KIND_MEASURED, key) && vgpu_place_none_on(card) &&
	    vgpu_take(VGPU_KIND_MEASURED, key, &charge))
		vgpu_release(VGPU_KIND_MEASURED, key, &charge, CUDA_SUCCESS);
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
	view.free_bytes = min_bytes(vgpu_allocatable_bytes(left_bytes), free_bytes);
	return view;
}
