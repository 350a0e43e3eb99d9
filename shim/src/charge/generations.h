/*
 * Generations of contexts: the number that a context's charges carry, from its first call
 * until the driver has ended it. A handle may name one generation after another, and a generation
 * may have several handles.
 *
 * place.c enters contexts as it meets them; the wrappers that begin and end contexts report those.
 * Makes no driver call, and takes no other lock under its own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/cuda_abi.h"

/* Where a context of a known generation lies; takes no lock. */
bool vgpu_generation_known(CUcontext context, struct vgpu_place *place);

/* Number of generations so far: a later one has a larger serial number. */
uint32_t vgpu_generations_serial(void);

/* A generation of a context: its charges carry it. */
struct vgpu_generation {
	uint32_t id;	    /* 0: unknown */
	uint64_t driver_id; /* cuCtxGetId; 0: the driver has none */
};
struct vgpu_generation vgpu_generation_of(CUcontext context);

/*
 * Assign a generation to the context, which lies on place->gpu. A known one remains if the driver's
 * number is the same or, where the driver has none, if it began after `serial`. True: the
 * generation is new; `*replaced` is the ended one that the handle named until then.
 */
bool vgpu_generation_begin(CUcontext context, uint64_t driver_id, uint32_t serial,
			   struct vgpu_place *place, uint32_t *replaced);

/* The driver has ended that generation: forget all its handles that have not been given again. */
void vgpu_generation_ended(uint32_t generation);

/* True until that generation has ended; 0 is never current. */
bool vgpu_generation_is_current(uint32_t generation);

/* Add a handle of the context that lies there; and remove that handle alone. */
void vgpu_generation_join(CUcontext context, struct vgpu_place place);
void vgpu_generation_part(CUcontext context);

/* True if a context on that GPU has been met and has not ended. */
bool vgpu_generation_any_on(int gpu);
