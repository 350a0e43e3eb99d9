/*
 * Lives of contexts: which number the charges of one carry, from its first call until the driver
 * has ended it. A handle may mean one life after another, and a life may have several handles.
 * Fed by place.c, which meets contexts, and by the wrappers that begin and end them. Makes no
 * driver call, and no other lock is taken under its own.
 */
#ifndef VGPU_LIVES_H
#define VGPU_LIVES_H

#include "charge/place.h"

/* Where a context lies whose life is known; takes no lock. */
bool vgpu_lives_known(CUcontext context, struct vgpu_place *place);

/* Lives that began so far: what began later has a larger serial number. */
uint32_t vgpu_lives_serial(void);

/* A life of a context: what its charges carry. */
struct vgpu_life {
	uint32_t id;	    /* 0: nothing of it is known */
	uint64_t driver_id; /* cuCtxGetId; 0: the driver has none */
};
struct vgpu_life vgpu_life_of(CUcontext context);

/*
 * Number this life of the context, which lies on place->GPU. A life that is known stays, if the
 * driver's number is the same, or, where the driver has none, if it began after `serial`. True:
 * this life is new; `*replaced` is the one that the handle meant until then, and that has ended.
 */
bool vgpu_lives_begin(CUcontext context, uint64_t driver_id, uint32_t serial,
		      struct vgpu_place *place, uint32_t *replaced);

/* The driver has ended that life: all its handles that have not been given again are unknown. */
void vgpu_life_ended(uint32_t life);

/* Has that life not ended yet? 0 never does. */
bool vgpu_place_lives(uint32_t life);

/* Another handle of the context that lies there; and that handle alone is unknown again. */
void vgpu_place_join(CUcontext context, struct vgpu_place place);
void vgpu_place_part(CUcontext context);

/* Has any context on that GPU been met and not ended? */
bool vgpu_place_any_on(int gpu);

#endif
