/* See meter_table.h. */
#include "meter_table.h"

enum { DEVICES = 64 };

struct vgpu_wiped *vgpu_meter_pages;

int vgpu_meter_card(const struct vgpu_meter *meter)
{
	return meter->card;
}

static uint32_t hint_of(uint64_t pool)
{
	return (uint32_t)((pool * UINT64_C(0x9e3779b97f4a7c15)) >> 58);
}

static struct vgpu_meter *search(struct vgpu_meter_table *t, uint64_t pool,
				 enum vgpu_meter_state state)
{
	uint32_t top = __atomic_load_n(&t->top, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < top; i++)
		if (vgpu_meter_is(&t->meters[i], pool, state))
			return &t->meters[i];
	return NULL;
}

struct vgpu_meter *vgpu_meter_find(CUmemoryPool handle)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	uint64_t pool = (uint64_t)(uintptr_t)handle;
	uint32_t hint = hint_of(pool);
	struct vgpu_meter *meter;

	if (!t || !pool)
		return NULL;
	meter = &t->meters[__atomic_load_n(&t->hints[hint], __ATOMIC_RELAXED)];
	if (vgpu_meter_is(meter, pool, VGPU_METER_POOL))
		return meter;
	meter = search(t, pool, VGPU_METER_POOL);
	if (meter)
		__atomic_store_n(&t->hints[hint], (uint16_t)(meter - t->meters), __ATOMIC_RELAXED);
	return meter;
}

bool vgpu_meter_outlives(CUmemoryPool handle)
{
	struct vgpu_meter_table *t = vgpu_meter_table();

	return t && handle && search(t, (uint64_t)(uintptr_t)handle, VGPU_METER_DESTROYED);
}

/* With the table's lock. */
struct vgpu_meter *vgpu_meter_new(struct vgpu_meter_table *t, enum vgpu_meter_state state,
				  uint64_t pool, int card)
{
	uint32_t at = 0;

	while (at < t->top && vgpu_meter_state(&t->meters[at]) != VGPU_METER_NONE)
		at++;
	if (at == VGPU_METERS)
		return NULL;
	__atomic_store_n(&t->meters[at].card, card, __ATOMIC_RELAXED);
	__atomic_store_n(&t->meters[at].charged_bytes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&t->meters[at].pool, pool, __ATOMIC_RELEASE);
	__atomic_store_n(&t->meters[at].state, state, __ATOMIC_RELEASE);
	if (at == t->top)
		__atomic_store_n(&t->top, at + 1, __ATOMIC_RELEASE);
	return &t->meters[at];
}

struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int card)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	struct vgpu_meter *meter;

	if (!t || !pool)
		return NULL;
	if (!vgpu_lock(&t->lock))
		return NULL;
	meter = vgpu_meter_find(pool);
	if (!meter)
		meter = vgpu_meter_new(t, VGPU_METER_POOL, (uint64_t)(uintptr_t)pool, card);
	vgpu_unlock(&t->lock);
	return meter;
}

bool vgpu_meter_device(int card, CUdevice *device)
{
	struct vgpu_place place;

	for (*device = 0; *device < DEVICES; ++*device) {
		if (vgpu_place_of_device(*device, &place) != CUDA_SUCCESS)
			return false;
		if (place.card == card)
			return true;
	}
	return false;
}
