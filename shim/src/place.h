/*
 * Whose memory a call takes: which card of the grant, and which life of a context.
 *
 * What a context holds goes with it, but its handle may come again (a primary context's always
 * does): so charges carry a number that names one life of a context, and no handle. Knows the
 * driver and the grant, and nothing of charges.
 */
#ifndef VGPU_PLACE_H
#define VGPU_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"
#include "vgpu/region.h"

struct vgpu_place {
	int card;	  /* index in the grant, or in its place one of region.h's */
	uint32_t context; /* one life of a context; 0: no context that is known */
};

/*
 * Where the current context, a context (NULL: the current one) and a device lie; a device's place
 * has context 0. What is not CUDA_SUCCESS, the wrapper returns; an unmanaged process succeeds.
 */
CUresult vgpu_place_current(struct vgpu_place *place);
CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place);
CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place);

/* One life of a context as it is told to end: what its charges carry. */
struct vgpu_life {
	CUcontext context;
	uint32_t id;	  /* 0: nothing of it is known */
	uint32_t written; /* place.c's */
};

/* Limits from the environment hold for all the devices that a program sees, from its start. */
void vgpu_place_meet_devices(void);

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

#endif
