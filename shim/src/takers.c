/* See takers.h. */
#include "takers.h"

#include "attach.h"

_Static_assert(sizeof(((struct vgpu_region_card *)0)->takers) == VGPU_TAKERS * sizeof(uint64_t),
	       "a word for each");

static uint64_t word_of(const struct vgpu_owner *owner)
{
	return owner->generation * VGPU_MAX_SLOTS + owner->slot;
}

/* Still of the process that wrote it, dead or alive. */
static bool is_somebody(const struct vgpu_view *view, uint64_t word)
{
	const struct vgpu_region_slot *slot =
	    vgpu_view_slot(view, (uint32_t)(word % VGPU_MAX_SLOTS));

	return word &&
	       __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) == word / VGPU_MAX_SLOTS;
}

uint64_t vgpu_taken_bytes(const struct vgpu_view *view, int card)
{
	uint64_t bytes = 0;

	for (int i = 0; i < VGPU_TAKERS; i++)
		if (is_somebody(view, __atomic_load_n(&vgpu_view_card(view, card)->takers[i],
						      __ATOMIC_SEQ_CST)))
			bytes += VGPU_CHUNK_BYTES;
	return bytes;
}

/* The swap stays before what is read of the counter: on x86 it is a barrier by itself. */
static bool swap(uint64_t *at, uint64_t from, uint64_t to)
{
	bool swapped =
	    __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);

#ifndef __x86_64__
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
	return swapped;
}

bool vgpu_taker_enter(int card, struct vgpu_taker *taker)
{
	struct vgpu_process *process = vgpu_process();

	if (!process || !vgpu_is_attached(process) || !vgpu_fits(card, VGPU_FAR_BYTES))
		return false;
	taker->word = word_of(&process->owner);
	for (uint32_t i = 0; i < VGPU_TAKERS; i++) {
		uint64_t former;

		taker->at = &vgpu_view_card(&process->view, card)
				 ->takers[(process->owner.slot + i) % VGPU_TAKERS];
		former = __atomic_load_n(taker->at, __ATOMIC_RELAXED);
		if (is_somebody(&process->view, former) || !swap(taker->at, former, taker->word))
			continue;
		if (vgpu_fits(card, VGPU_FAR_BYTES))
			return true;
		vgpu_taker_leave(taker);
		return false;
	}
	return false;
}

/* Another has it, where we were held for dead meanwhile. */
void vgpu_taker_leave(const struct vgpu_taker *taker)
{
	uint64_t word = taker->word;

	(void)__atomic_compare_exchange_n(taker->at, &word, 0, false, __ATOMIC_RELEASE,
					  __ATOMIC_RELAXED);
}
