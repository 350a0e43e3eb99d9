/*
 * Lives of contexts: which number the charges of one carry, from its first call until the driver
 * has ended it. A handle may mean one life after another, and a life may have several handles.
 * Fed by place.c, which meets contexts, and by the wrappers that begin and end them; asks nobody.
 */
#ifndef VGPU_LIVES_H
#define VGPU_LIVES_H

#include "place.h"

/* Where a context lies whose life is known; takes no lock. */
bool vgpu_lives_known(CUcontext context, struct vgpu_place *place);

/* Number this life of the context, which lies on place->card, or learn which number another thread
 * gave it meanwhile. */
void vgpu_lives_begin(CUcontext context, struct vgpu_place *place);

/* One life of a context as it is told to end: what its charges carry. */
struct vgpu_life {
	CUcontext context;
	uint32_t id;	  /* 0: nothing of it is known */
	uint32_t written; /* lives.c's */
};

/*
 * The driver is about to be asked to end a life, and has answered. Meanwhile the handle means the
 * same to everybody, unless the driver gives it to a new context: whoever makes one says so.
 */
struct vgpu_life vgpu_place_ending(CUcontext context);
void vgpu_place_ended(const struct vgpu_life *life, bool ended);
void vgpu_place_given(CUcontext context);

/* Has that life not ended yet? 0 never does. */
bool vgpu_place_lives(uint32_t life);

/* Another handle of the context that lies there; and all handles of a life that has ended. */
void vgpu_place_join(CUcontext context, struct vgpu_place place);
void vgpu_place_forget(uint32_t life);

/* Some context on that card that has been met and not ended; NULL: none. */
CUcontext vgpu_place_context_on(int card);

/* A handle of the context of that life; NULL: it has ended. */
CUcontext vgpu_place_context_of(uint32_t life);

/* Whether no other context than that life of one is on its card, as far as is known for certain. */
bool vgpu_place_alone(struct vgpu_place place);

/* Whether none is there for certain: all that there were have been met and had a number. */
bool vgpu_place_none_on(int card);

#endif
