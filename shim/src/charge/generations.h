/*
 * Generations of contexts. A generation is a number for one context, from its first use until the
 * driver has ended it. The context's charges carry the number. The driver may reuse a handle for a
 * new context, and a context may have several handles.
 *
 * place.c and the wrappers of context calls report when contexts begin and end. These functions
 * make no driver call, and take no other lock while they hold the table's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"

/* Find the place of a context, without a lock. False: the context's generation is not known. */
bool vgpu_generation_known(CUcontext context, struct vgpu_place *place);

/* The latest serial number. A handle that is entered later has a larger one. */
uint32_t vgpu_generations_serial(void);

/* The generation of a context, and the driver's own number of the context. */
struct vgpu_generation {
	uint32_t id;	    /* 0: unknown */
	uint64_t driver_id; /* result of cuCtxGetId; 0: the driver has no such number */
};
struct vgpu_generation vgpu_generation_of(CUcontext context);

/* Assign a generation to the context, which lies on place->gpu. The handle's known generation is
 * kept if the driver's number of the context is the same, or if the driver has no numbers and the
 * handle was entered after `serial`. True: the generation is new. `*replaced` is then the ended
 * generation that the handle named before, or 0. */
bool vgpu_generation_begin(CUcontext context, uint64_t driver_id, uint32_t serial,
			   struct vgpu_place *place, uint32_t *replaced);

/* Remove the generation's handles, after the driver has ended its context. */
void vgpu_generation_ended(uint32_t generation);

/* True until that generation has ended. Always true for 0, memory of no known context. */
bool vgpu_generation_is_current(uint32_t generation);

/* Add a further handle of the context at `place`, or remove only that handle. */
void vgpu_generation_join(CUcontext context, struct vgpu_place place);
void vgpu_generation_part(CUcontext context);

/* True if a context on that GPU is known and has not ended. */
bool vgpu_generation_any_on(int gpu);
