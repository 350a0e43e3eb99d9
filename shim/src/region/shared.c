/*
 * See shared.h. Every function here is called rarely, and takes the process's setup lock.
 *
 * A process may join a slot while another reclaims it after its last holder has ended. The joiner
 * locks the slot and then reads the key. The reclaimer (slots.c) removes the key and then tests the
 * lock. So at least one observes the other: either the slot remains, or the joiner finds no key. A
 * removed key is not restored. Later importers are charged themselves, which is never too little.
 */
#include "region/shared.h"

#include <sys/mman.h>

#include "os/fork_wiped.h"
#include "os/step.h"
#include "region/mapping.h"
#include "region/slot_lock.h"

struct hold {
	void *anchor; /* the page that keeps the slot's lock; NULL: not held */
	uint64_t generation;
	uint32_t count;
};

struct holds {
	struct vgpu_fork_wiped wiped;
	struct hold of_slot[VGPU_SHARED_SLOTS];
};

static struct vgpu_fork_wiped *the_holds;

static struct holds *get_holds(void)
{
	return vgpu_fork_wiped_pages(&the_holds, sizeof(struct holds));
}

/* Take the setup lock, which `end` releases, and open the region's file. False: nothing is to be
 * done. If slots->fd is negative, the file cannot be opened, and holds can only be released. */
static bool begin(struct vgpu_process **process, struct vgpu_slots *slots)
{
	*process = vgpu_process();
	if (!get_holds() || !*process || !vgpu_is_mapped(*process))
		return false;
	if (!vgpu_lock(&(*process)->setup))
		return false;
	(void)vgpu_reopen(*process, slots, NULL);
	return true;
}

static void end(struct vgpu_process *process, const struct vgpu_slots *slots)
{
	vgpu_close(slots);
	vgpu_unlock(&process->setup);
}

static bool enter(const struct vgpu_slots *slots, const struct vgpu_owner *owner)
{
	struct hold *hold = &get_holds()->of_slot[owner->slot];

	hold->anchor = vgpu_anchor_cast(slots->fd, owner->slot);
	hold->generation = owner->generation;
	hold->count = hold->anchor != NULL;
	return hold->count;
}

static bool export_locked(struct vgpu_process *process, const struct vgpu_slots *slots,
			  struct vgpu_shared_charge charge, uint64_t key, struct vgpu_owner *owner)
{
	/* If the process's own lock is missing, the region is on overlayfs, where a mapping keeps
	 * no lock. There the shared slot would be reclaimed while its holder runs. */
	if (slots->fd < 0 || !process->attached ||
	    !vgpu_slot_is_locked(slots->fd, process->owner.slot) ||
	    !vgpu_slots_claim(slots, owner, VGPU_SLOT_SHARED))
		return false;
	VGPU_AT(SHARE_CLAIMED);
	if (vgpu_counter_change(&process->view, charge.gpu, owner, true, charge.bytes,
				VGPU_NO_LIMIT) == VGPU_APPLIED &&
	    enter(slots, owner)) {
		VGPU_AT(SHARE_CHARGED);
		vgpu_slots_offer(slots, owner, key);
		VGPU_AT(SHARE_OFFERED);
		return true;
	}
	vgpu_slots_drop(slots, owner);
	vgpu_slots_free(slots, owner);
	return false;
}

vgpu_hold vgpu_shared_export(struct vgpu_shared_charge charge, uint64_t key)
{
	struct vgpu_process *process;
	struct vgpu_slots slots;
	struct vgpu_owner owner;
	bool shared;

	if (!begin(&process, &slots))
		return 0;
	shared = export_locked(process, &slots, charge, key, &owner);
	end(process, &slots);
	if (!shared)
		return 0;
	vgpu_refund(charge.gpu, charge.bytes);
	VGPU_AT(SHARE_MOVED);
	return owner.slot + 1;
}

/* The charge of a shared slot, which may be 0 bytes. */
static struct vgpu_shared_charge charge_of(const struct vgpu_view *view, uint32_t slot)
{
	struct vgpu_shared_charge charge = {0};

	for (int gpu = 0; gpu < view->gpu_count && !charge.bytes; gpu++)
		charge =
		    (struct vgpu_shared_charge){gpu, vgpu_counter_charged_bytes(view, gpu, slot)};
	return charge;
}

static bool join_locked(const struct vgpu_slots *slots, uint64_t key, struct vgpu_owner *owner,
			struct vgpu_shared_charge *charge)
{
	struct hold *hold;

	if (slots->fd < 0 || !vgpu_slots_find_shared(slots, key, owner))
		return false;
	hold = &get_holds()->of_slot[owner->slot];
	if (hold->anchor && hold->generation == owner->generation)
		hold->count++;
	else if (!vgpu_slots_join(slots, owner, key) || !enter(slots, owner))
		return false;
	*charge = charge_of(slots->view, owner->slot);
	return true;
}

vgpu_hold vgpu_shared_join(uint64_t key, struct vgpu_shared_charge *charge)
{
	struct vgpu_process *process;
	struct vgpu_slots slots;
	struct vgpu_owner owner;
	vgpu_hold hold = 0;

	if (!begin(&process, &slots))
		return 0;
	if (join_locked(&slots, key, &owner, charge))
		hold = owner.slot + 1;
	end(process, &slots);
	VGPU_AT(JOIN_DONE);
	return hold;
}

static void let_go(struct hold *hold, const struct vgpu_slots *slots, uint32_t slot)
{
	struct vgpu_owner owner = {slot, hold->generation};

	munmap(hold->anchor, VGPU_ANCHOR_MAPPED_BYTES);
	hold->anchor = NULL;
	hold->count = 0;
	VGPU_AT(LEAVE_UNLOCKED);
	if (slots->fd >= 0)
		vgpu_slots_reap_one(slots, &owner);
	VGPU_AT(LEAVE_DONE);
}

void vgpu_shared_leave(vgpu_hold held)
{
	struct vgpu_process *process;
	struct vgpu_slots slots;
	struct hold *hold;

	if (!held || !begin(&process, &slots))
		return;
	hold = &get_holds()->of_slot[held - 1];
	if (hold->anchor && --hold->count == 0)
		let_go(hold, &slots, held - 1);
	end(process, &slots);
}
