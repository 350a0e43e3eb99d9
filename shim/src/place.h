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
	uint64_t meaning; /* place.c's */
	uint32_t ids[2]; /* two, if an end that the driver refused once gave it a second; 0: none */
};

/* Limits from the environment hold for all the devices that a program sees, from its start. */
void vgpu_place_meet_devices(void);

/*
 * A life is about to end: from here on the handle means another. What the driver refuses to end is
 * put back.
 */
struct vgpu_life vgpu_place_detach(CUcontext context);
void vgpu_place_put_back(const struct vgpu_life *life);

/* Has that life not ended yet? 0 never does. */
bool vgpu_place_lives(uint32_t life);

/* Another handle of the context that lies there; and all handles of a life that has ended. */
void vgpu_place_join(CUcontext context, struct vgpu_place place);
void vgpu_place_forget(uint32_t life);

/* Some context on that card that has been met and not ended; NULL: none. */
CUcontext vgpu_place_context_on(int card);

#endif
