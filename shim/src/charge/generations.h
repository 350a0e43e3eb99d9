/*
 * Generations of contexts. A generation is the number that a context's charges carry, from the
 * context's first call until the driver has ended it. A handle may name one generation after
 * another, and a generation may have several handles.
 *
 * place.c enters a context at its first use. The wrappers that begin and end contexts report those
 * events. These functions make no driver call, and take no other lock while they hold theirs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"

/* The place of a context whose generation is known. Takes no lock. */
bool vgpu_generation_known(CUcontext context, struct vgpu_place *place);

/* The latest serial number. A generation that is entered later has a larger one. */
uint32_t vgpu_generations_serial(void);

/* The generation of a context, with the driver's own number. */
struct vgpu_generation {
	uint32_t id;	    /* 0: unknown */
	uint64_t driver_id; /* cuCtxGetId; 0: the driver has none */
};
struct vgpu_generation vgpu_generation_of(CUcontext context);

/*
 * Assign a generation to the context, which lies on place->gpu. A known generation is kept if the
 * driver's number is the same. Where the driver has no number, it is kept if it was entered after
 * `serial`. True: the generation is new. `*replaced` is then the ended one that the handle named
 * before.
 */
bool vgpu_generation_begin(CUcontext context, uint64_t driver_id, uint32_t serial,
			   struct vgpu_place *place, uint32_t *replaced);

/* The driver has ended that generation. Remove those of its handles that still name it. */
void vgpu_generation_ended(uint32_t generation);

/* True until that generation has ended. Always true for 0, which has no end of its own. */
bool vgpu_generation_is_current(uint32_t generation);

/* Add a further handle of the context at `place`, or remove that handle alone. */
void vgpu_generation_join(CUcontext context, struct vgpu_place place);
void vgpu_generation_part(CUcontext context);

/* True if a context on that GPU is known and has not ended. */
bool vgpu_generation_any_on(int gpu);
