/* Which meter a card has now: of its current pool, and of its graphs; see meter.h and
 * meter_table.h. */
#include "meter_table.h"

/* With the lock of changing. */
static void set_current(struct vgpu_meter_table *t, int card, CUmemoryPool pool)
{
	struct vgpu_meter *meter = vgpu_meter_add(pool, card);
	uint16_t index = meter ? (uint16_t)(meter - t->meters + 1) : 0;

	__atomic_store_n(&t->current[card], index, __ATOMIC_RELEASE);
}

/* With the lock of changing. */
static struct vgpu_meter *find_current(struct vgpu_meter_table *t, int card)
{
	CUmemoryPool pool;
	CUdevice device;

	if (!vgpu_meter_current_index(t, card) && vgpu_meter_device(card, &device) &&
	    real_cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS)
		set_current(t, card, pool);
	return vgpu_meter_current_index(t, card) ? &t->meters[vgpu_meter_current_index(t, card) - 1]
						 : NULL;
}

struct vgpu_meter *vgpu_meter_current(int card)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	struct vgpu_meter *meter;
	uint16_t index;

	if (!t || card < 0)
		return NULL;
	index = vgpu_meter_current_index(t, card);
	if (index)
		return &t->meters[index - 1];
	if (!vgpu_lock(&t->changing))
		return NULL;
	meter = find_current(t, card);
	vgpu_unlock(&t->changing);
	return meter;
}

struct vgpu_meter *vgpu_meter_hold_current(int card)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	struct vgpu_meter *meter;

	if (!t || card < 0)
		return NULL;
	if (!vgpu_lock(&t->changing))
		return NULL;
	meter = find_current(t, card);
	if (meter && vgpu_lock(&meter->lock))
		return meter;
	vgpu_unlock(&t->changing);
	return NULL;
}

void vgpu_meter_let_current(struct vgpu_meter *held, int card, CUmemoryPool now)
{
	struct vgpu_meter_table *t = vgpu_meter_table();

	if (!held)
		return;
	if (now)
		set_current(t, card, now);
	vgpu_unlock(&held->lock);
	vgpu_unlock(&t->changing);
}

void vgpu_meter_not_current(struct vgpu_meter_table *t, const struct vgpu_meter *meter)
{
	uint16_t index = (uint16_t)(meter - t->meters + 1);

	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (__atomic_load_n(&t->current[card], __ATOMIC_RELAXED) == index)
			__atomic_store_n(&t->current[card], 0, __ATOMIC_RELEASE);
}

/* The driver may have done away with a pool, and made another current. */
void vgpu_meter_recheck_current(const struct vgpu_meter *meter)
{
	CUmemoryPool now;
	CUdevice device;

	if (!vgpu_meter_device(meter->card, &device) ||
	    real_cuDeviceGetMemPool(&now, device) != CUDA_SUCCESS ||
	    (uint64_t)(uintptr_t)now != meter->pool)
		vgpu_meter_not_current(vgpu_meter_table(), meter);
}

struct vgpu_meter *vgpu_meter_graphs(int card)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	struct vgpu_meter *meter = NULL;
	CUdevice device;
	uint16_t index;

	if (!t || card < 0)
		return NULL;
	index = __atomic_load_n(&t->graphs[card], __ATOMIC_ACQUIRE);
	if (index)
		return &t->meters[index - 1];
	if (!vgpu_meter_device(card, &device))
		return NULL;
	if (!vgpu_lock(&t->lock))
		return NULL;
	if (!t->graphs[card] && (meter = vgpu_meter_new(t, VGPU_METER_GRAPHS, 0, card))) {
		meter->device = device;
		__atomic_store_n(&t->graphs[card], (uint16_t)(meter - t->meters + 1),
				 __ATOMIC_RELEASE);
	}
	vgpu_unlock(&t->lock);
	return t->graphs[card] ? &t->meters[t->graphs[card] - 1] : NULL;
}
