/*
 * Memory that the program freed in stream order: charged until the card has it back.
 *
 * What a pool gave is its meter's matter. Memory of cuMemAlloc and imports of pools may be freed by
 * cuMemFreeAsync too, and the driver holds them until the stream gets there. Their charges, taken
 * out of the ledger, wait here, each with an event of ours recorded behind the free; nobody waits
 * for it. They are looked at wherever the driver may have given something back, and before anybody
 * is refused. Where no event can be had, or there is no room, the charge goes back to the ledger:
 * it lasts until the address is given again or the context ends.
 *
 * Asks the driver; fed by cuMemFreeAsync's wrapper and by those that end contexts. A fork child
 * begins with none.
 */
#ifndef VGPU_STREAM_FREES_H
#define VGPU_STREAM_FREES_H

#include <stdbool.h>
#include <stdint.h>

#include "admission.h"

enum { VGPU_STREAM_FREES = 4096 };

/* The driver will free it once `stream` gets there; 0 is the legacy stream. The charge was taken;
 * one that is nobody's is ignored. */
void vgpu_freed_in_stream(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
			  CUstream stream);

/* Of this process, or of the one it was forked from. */
extern uint32_t vgpu_stream_frees;

/* Refund what the card has back by now. True: that was something. Of next to no cost where nothing
 * waits. */
bool vgpu_settle_known_frees(void);
static inline bool vgpu_settle_frees(void)
{
	return __atomic_load_n(&vgpu_stream_frees, __ATOMIC_RELAXED) && vgpu_settle_known_frees();
}

/*
 * A reservation of `bytes` did not fit. True: something was refunded, try again. Waits for that
 * where it would be enough; `round` starts at 0, and the rounds together wait at most half a
 * second.
 */
bool vgpu_await_frees(int card, uint64_t bytes, int *round);

/* The driver gave that address to new memory: it is free of what it was before. */
void vgpu_end_known_free(uint64_t address);
static inline void vgpu_end_free(uint64_t address)
{
	if (__atomic_load_n(&vgpu_stream_frees, __ATOMIC_RELAXED))
		vgpu_end_known_free(address);
}

/* The driver is about to be asked to end a context, and has answered: meanwhile its events are not
 * asked, and they end with it. */
void vgpu_frees_context_ending(uint32_t context);
void vgpu_frees_context_ended(uint32_t context, bool ended);

#endif
