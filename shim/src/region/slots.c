#include "region/slots.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/step.h"
#include "region/process.h"
#include "region/slot_lock.h"

/* A process that attaches searches about this many slots for exited processes. The next process
 * that attaches continues behind them. A process that is about to refuse or report searches all
 * slots. */
#define SLOTS_PER_START 64

void vgpu_slots_drop(const struct vgpu_slots *slots, const struct vgpu_owner *owner)
{
	for (int gpu = 0; gpu < slots->view->gpu_count; gpu++)
		if (vgpu_counter_drop(slots->view, gpu, owner, false))
			__atomic_store_n(&vgpu_view_gpu(slots->view, gpu)->last_drop_ns,
					 vgpu_now_ns(), __ATOMIC_RELAXED);
}

/* Free a slot that the caller has locked. By the new generation the last owner, if it still runs,
 * sees that it has lost the slot. start_ticks is cleared because the next owner may exit before it
 * has written its identity. Then only the lock tells whether that owner exists. */
static void free_locked(struct vgpu_region_slot *slot, const struct vgpu_owner *owner)
{
	if (vgpu_slot_generation(slot) != owner->generation ||
	    vgpu_slot_state(slot) == VGPU_SLOT_FREE)
		return;
	__atomic_store_n(&slot->generation, owner->generation + 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&slot->start_ticks, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->shared_key, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->state, VGPU_SLOT_FREE, __ATOMIC_RELEASE);
	VGPU_AT(FREE_DONE);
}

struct vgpu_identity vgpu_slots_holder(const struct vgpu_region_slot *slot)
{
	return (struct vgpu_identity){
	    .pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED),
	    .start_ticks = __atomic_load_n(&slot->start_ticks, __ATOMIC_RELAXED),
	    .pid_namespace = __atomic_load_n(&slot->pid_namespace, __ATOMIC_RELAXED),
	};
}

/* Whether the slot's holder has exited. The lock may be held after the exit, because a raw clone's
 * child inherited the open file description. So a free pid, or in a thorough search a reused pid,
 * means that the holder has exited. The lock may be free although the holder runs, because on
 * overlayfs a mapping keeps no lock. So the holder's anchor (attach.c) is looked for. */
static bool has_exited(const struct vgpu_slots *slots, uint32_t number, enum vgpu_search search)
{
	const struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, number);
	struct vgpu_identity holder = vgpu_slots_holder(slot);
	bool seen = vgpu_identity_is_visible(slots->self, &holder);

	if (seen && vgpu_identity_pid_is_free(&holder))
		return true;
	if (vgpu_slot_is_locked(slots->fd, number))
		return seen && search == VGPU_SEARCH_THOROUGH &&
		       vgpu_identity_presence(slots->self, &holder) == VGPU_GONE;
	if (!seen || vgpu_identity_presence(slots->self, &holder) == VGPU_GONE)
		return true;
	return !vgpu_identity_maps(&holder, slots->view->base, vgpu_slots_anchor_offset(number));
}

void vgpu_slots_free(const struct vgpu_slots *slots, const struct vgpu_owner *owner)
{
	if (!vgpu_slot_lock(slots->fd, owner->slot, F_WRLCK))
		return;
	VGPU_AT(FREE_LOCKED);
	free_locked(vgpu_view_slot(slots->view, owner->slot), owner);
	(void)vgpu_slot_lock(slots->fd, owner->slot, F_UNLCK);
}

/* True if no process can join the shared slot, which had no holder. Remove the key first, so that
 * no process finds the slot any more. A joiner that found the key before has locked the slot
 * (shared.c). The kernel orders the two: if the joiner's lock is not visible here, the joiner sees
 * no key. */
static bool no_process_joins(const struct vgpu_slots *slots, uint32_t number, uint64_t key)
{
	struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, number);

	if (key && !__atomic_compare_exchange_n(&slot->shared_key, &key, 0, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
		return false;
	VGPU_AT(SHARE_HIDDEN);
	return !vgpu_slot_is_locked(slots->fd, number);
}

static void reap(const struct vgpu_slots *slots, const struct vgpu_owner *owner,
		 enum vgpu_search search)
{
	const struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, owner->slot);
	uint64_t key = __atomic_load_n(&slot->shared_key, __ATOMIC_SEQ_CST);

	if (!has_exited(slots, owner->slot, search))
		return;
	VGPU_AT(REAP_VERDICT);
	if (vgpu_slot_state(slot) == VGPU_SLOT_SHARED && !no_process_joins(slots, owner->slot, key))
		return;
	vgpu_slots_drop(slots, owner);
	vgpu_slots_free(slots, owner);
}

void vgpu_slots_reap_one(const struct vgpu_slots *slots, const struct vgpu_owner *owner)
{
	if (vgpu_slot_generation(vgpu_view_slot(slots->view, owner->slot)) == owner->generation)
		reap(slots, owner, VGPU_SEARCH_QUICK);
}

/* Reclaim slots of exited processes, from `begin` to `end` or to the first slot that was never
 * taken. True: the search ended at such a slot. */
static bool reap_range(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		       uint32_t begin, uint32_t end, enum vgpu_search search)
{
	for (uint32_t number = begin; number < end; number++) {
		struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, number);
		/* The generation is read before has_exited and compared after it, so that the
		 * result is about this holder. */
		struct vgpu_owner owner = {number, vgpu_slot_generation(slot)};

		if (owner.generation == 0)
			return true;
		if (except && except->slot == number && except->generation == owner.generation)
			continue;
		/* A free slot may be charged, if its last owner was still running and within an
		 * operation when the slot was freed. */
		if (vgpu_slot_state(slot) == VGPU_SLOT_FREE)
			vgpu_slots_drop(slots, &owner);
		else
			reap(slots, &owner, search);
	}
	return false;
}

void vgpu_slots_reap(const struct vgpu_slots *slots, const struct vgpu_owner *except,
		     enum vgpu_search search)
{
	(void)reap_range(slots, except, 0, VGPU_MAX_SLOTS, search);
}

static void retire_own(const struct vgpu_slots *slots)
{
	for (uint32_t number = 0; number < VGPU_MAX_SLOTS; number++) {
		struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, number);
		struct vgpu_owner owner = {number, vgpu_slot_generation(slot)};

		if (owner.generation == 0)
			break;
		if (vgpu_slot_state(slot) != VGPU_SLOT_FREE &&
		    __atomic_load_n(&slot->pid, __ATOMIC_RELAXED) == slots->self->pid)
			reap(slots, &owner, VGPU_SEARCH_QUICK);
	}
}

void vgpu_slots_reap_at_start(const struct vgpu_slots *slots)
{
	uint64_t *next = &vgpu_view_gpu(slots->view, 0)->next_search;
	uint32_t begin = 0;

	retire_own(slots);
	if (vgpu_slot_generation(vgpu_view_slot(slots->view, SLOTS_PER_START)) != 0)
		begin = (uint32_t)__atomic_fetch_add(next, SLOTS_PER_START, __ATOMIC_RELAXED) &
			(VGPU_MAX_SLOTS - SLOTS_PER_START);
	if (!reap_range(slots, NULL, begin, begin + SLOTS_PER_START, VGPU_SEARCH_QUICK) || !begin)
		return;
	__atomic_store_n(next, SLOTS_PER_START, __ATOMIC_RELAXED);
	(void)reap_range(slots, NULL, 0, SLOTS_PER_START, VGPU_SEARCH_QUICK);
}

/* Searches end at the first slot that was never taken. A process skips such a slot if another
 * process is just taking it. It then marks the slot as taken. So if the other process exits,
 * searches still reach the slots above. */
static void mark_passed_over(struct vgpu_region_slot *slot)
{
	uint64_t never = 0;

	if (vgpu_slot_generation(slot) == never)
		__atomic_compare_exchange_n(&slot->generation, &never, 1, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_RELAXED);
}

/* Take a slot that the caller has locked. The generation is written last. No search has seen the
 * new value before, because taking adds 2, and mark_passed_over only 1. So a slow reclaimer, which
 * compares the generation, does not drop the new owner's charge. */
static void take_locked(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state)
{
	static const struct vgpu_identity none;
	const struct vgpu_identity *identity = state == VGPU_SLOT_LIVE ? slots->self : &none;
	struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, owner->slot);

	for (int gpu = 0; gpu < slots->view->gpu_count; gpu++)
		vgpu_counter_drop(slots->view, gpu, owner, true);
	__atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
	VGPU_AT(CLAIM_LIVE);
	__atomic_store_n(&slot->pid, identity->pid, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->pid_namespace, identity->pid_namespace, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->start_ticks, identity->start_ticks, __ATOMIC_RELEASE);
	VGPU_AT(CLAIM_NAMED);
	owner->generation += 2;
	__atomic_store_n(&slot->generation, owner->generation, __ATOMIC_SEQ_CST);
	VGPU_AT(CLAIM_DONE);
}

static bool claim(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state)
{
	struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, owner->slot);
	bool taken = false;

	if (vgpu_slot_state(slot) == VGPU_SLOT_FREE &&
	    vgpu_slot_lock(slots->fd, owner->slot, F_WRLCK)) {
		VGPU_AT(CLAIM_LOCKED);
		owner->generation = vgpu_slot_generation(slot);
		taken = vgpu_slot_state(slot) == VGPU_SLOT_FREE;
		if (taken)
			take_locked(slots, owner, state);
		else
			(void)vgpu_slot_lock(slots->fd, owner->slot, F_UNLCK);
	}
	if (!taken)
		mark_passed_over(slot);
	return taken;
}

bool vgpu_slots_claim(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint32_t state)
{
	uint32_t count = state == VGPU_SLOT_SHARED ? VGPU_SHARED_SLOTS : VGPU_MAX_SLOTS;

	for (owner->slot = 0; owner->slot < count; owner->slot++)
		if (claim(slots, owner, state))
			return true;
	return false;
}

void vgpu_slots_offer(const struct vgpu_slots *slots, const struct vgpu_owner *owner, uint64_t key)
{
	(void)vgpu_slot_lock(slots->fd, owner->slot, F_RDLCK);
	__atomic_store_n(&vgpu_view_slot(slots->view, owner->slot)->shared_key, key,
			 __ATOMIC_SEQ_CST);
}

/* Read the slot's generation. True if the slot is offered by that key. */
static bool is_offered(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint64_t key)
{
	const struct vgpu_region_slot *slot = vgpu_view_slot(slots->view, owner->slot);

	owner->generation = vgpu_slot_generation(slot);
	return vgpu_slot_state(slot) == VGPU_SLOT_SHARED &&
	       __atomic_load_n(&slot->shared_key, __ATOMIC_SEQ_CST) == key;
}

bool vgpu_slots_find_shared(const struct vgpu_slots *slots, uint64_t key, struct vgpu_owner *owner)
{
	for (owner->slot = 0; owner->slot < VGPU_SHARED_SLOTS; owner->slot++) {
		if (is_offered(slots, owner, key))
			return true;
		if (owner->generation == 0)
			break;
	}
	return false;
}

bool vgpu_slots_join(const struct vgpu_slots *slots, struct vgpu_owner *owner, uint64_t key)
{
	if (!vgpu_slot_lock(slots->fd, owner->slot, F_RDLCK))
		return false;
	VGPU_AT(JOIN_LOCKED);
	if (is_offered(slots, owner, key))
		return true;
	(void)vgpu_slot_lock(slots->fd, owner->slot, F_UNLCK);
	return false;
}
