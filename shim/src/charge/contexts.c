#include "charge/contexts.h"

#include <stddef.h>

#include "charge/claims.h"
#include "charge/generations.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

uint64_t vgpu_context_driver_id(CUcontext context)
{
	unsigned long long id = 0;

	return real_cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

static uint64_t cost_bytes(int gpu)
{
	return vgpu_context_bytes(gpu, !vgpu_generation_any_on(gpu));
}

CUresult vgpu_context_reserve(struct vgpu_place place, struct vgpu_reservation *out)
{
	return vgpu_reserve_at(place, place.gpu >= 0 ? cost_bytes(place.gpu) : 0, out);
}

/* Charge a new context. If the ledger has no space, the charge stays until the process ends. */
static void charge(struct vgpu_place place, struct vgpu_reservation *reservation, uint64_t bytes)
{
	struct vgpu_reservation met = {place, bytes};

	if (reservation)
		met.bytes = reservation->bytes;
	else if (place.gpu < 0 || vgpu_charge(place.gpu, bytes) != VGPU_OK)
		return;
	(void)vgpu_commit(&met, VGPU_KIND_CONTEXT, place.context, 0);
}

void vgpu_context_first_used(CUcontext context, uint32_t serial, struct vgpu_place *place,
			     struct vgpu_reservation *reservation)
{
	uint64_t bytes = reservation || place->gpu < 0 ? 0 : cost_bytes(place->gpu);
	uint32_t replaced;
	bool begins = vgpu_generation_begin(context, vgpu_context_driver_id(context), serial, place,
					    &replaced);

	if (replaced)
		vgpu_context_ended(replaced);
	if (begins)
		charge(*place, reservation, bytes);
	else if (reservation)
		vgpu_cancel(reservation);
}

void vgpu_context_ended(uint32_t generation)
{
	if (!generation)
		return;
	vgpu_generation_ended(generation);
	vgpu_forget_context(generation);
	vgpu_claims_end_context(generation);
}
