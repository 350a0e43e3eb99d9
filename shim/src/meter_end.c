/*
 * The end of pools, and all meters at once: they are read wherever the driver may have given
 * something back, trimmed before a refusal, and forgotten with their device; see meter.h.
 */
#include "meter_driver.h"

enum { RELEASE_THRESHOLD = 4 }; /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */

/* A destroyed pool that holds nothing any more goes now; it is nobody else's. */
static void bury(struct vgpu_meter *meter)
{
	if (vgpu_meter_state(meter) != VGPU_METER_DESTROYED || meter->charged_bytes ||
	    vgpu_meter_last_reserved(meter))
		return;
	real_cuMemPoolDestroy((CUmemoryPool)(uintptr_t)meter->pool);
	__atomic_store_n(&meter->state, VGPU_METER_NONE, __ATOMIC_RELEASE);
}

static bool in_use(const struct vgpu_meter *meter)
{
	return vgpu_meter_state(meter) != VGPU_METER_NONE && vgpu_meter_charged(meter);
}

void vgpu_meters_read_all(void)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		/* Whoever is in a call that may take more reads it after that. Asked under the
		 * lock: another thread may destroy the pool. */
		if (!in_use(meter) || !vgpu_trylock(&meter->lock))
			continue;
		if (in_use(meter))
			vgpu_meter_follow(meter);
		bury(meter);
		vgpu_unlock(&meter->lock);
	}
}

bool vgpu_meters_trim(int card)
{
	struct vgpu_meter_table *t =
	    __atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED) ? vgpu_meter_table() : NULL;
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	bool gained = false;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		if (!in_use(meter) || __atomic_load_n(&meter->card, __ATOMIC_RELAXED) != card)
			continue;
		if (!vgpu_lock(&meter->lock))
			continue;
		if (in_use(meter)) {
			vgpu_meter_shrink(meter, NULL, 0);
			gained |= vgpu_meter_follow(meter);
		}
		bury(meter);
		vgpu_unlock(&meter->lock);
	}
	return gained;
}

/* Unknown before the driver is asked: it may give the handle to another thread's pool at once. */
static CUresult destroy_now(struct vgpu_meter *meter, CUmemoryPool pool)
{
	CUresult result;

	__atomic_store_n(&meter->state, VGPU_METER_DESTROYED, __ATOMIC_RELEASE);
	result = real_cuMemPoolDestroy(pool);
	__atomic_store_n(&meter->state, result == CUDA_SUCCESS ? VGPU_METER_NONE : VGPU_METER_POOL,
			 __ATOMIC_RELEASE);
	return result;
}

/*
 * A driver lets a destroyed pool live on until nothing of it is in use, and its handle can then no
 * longer be asked. So a pool that is in use stays, and is destroyed when it is not: all the program
 * can tell is that its card's current pool is the default one again.
 */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool)
{
	uint64_t keep_bytes = 0;
	struct vgpu_meter_table *t = vgpu_meter_table();
	CUmemoryPool fallback;
	CUdevice device;
	CUresult result = CUDA_SUCCESS;

	if (!vgpu_lock(&t->changing))
		return CUDA_ERROR_NOT_READY;
	if (!vgpu_lock(&meter->lock)) {
		vgpu_unlock(&t->changing);
		return CUDA_ERROR_NOT_READY;
	}
	if (meter->card >= 0)
		vgpu_meter_shrink(meter, NULL, 0);
	vgpu_meter_follow(meter);
	if (!vgpu_meter_is(meter, (uint64_t)(uintptr_t)pool, VGPU_METER_POOL)) {
		result = CUDA_ERROR_INVALID_VALUE; /* another thread was first */
	} else if (meter->card < 0 || !meter->charged_bytes) {
		result = destroy_now(meter, pool);
	} else if (vgpu_meter_device(meter->card, &device) &&
		   real_cuDeviceGetDefaultMemPool(&fallback, device) == CUDA_SUCCESS) {
		if (fallback == pool) {
			result = real_cuMemPoolDestroy(pool); /* the driver refuses */
		} else {
			real_cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &keep_bytes);
			if (real_cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS &&
			    (uint64_t)(uintptr_t)pool == meter->pool)
				real_cuDeviceSetMemPool(device, fallback);
			__atomic_store_n(&meter->state, VGPU_METER_DESTROYED, __ATOMIC_RELEASE);
		}
	}
	vgpu_meter_not_current(t, meter);
	vgpu_unlock(&meter->lock);
	vgpu_unlock(&t->changing);
	return result;
}

void vgpu_meters_forget(CUdevice device)
{
	struct vgpu_meter_table *t = vgpu_meter_table();
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	struct vgpu_place place;

	if (!top || vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.card < 0)
		return;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		if (!vgpu_lock(&meter->lock))
			continue;
		bool there =
		    vgpu_meter_state(meter) != VGPU_METER_NONE && meter->card == place.card;
		if (there && vgpu_meter_state(meter) == VGPU_METER_GRAPHS) {
			vgpu_meter_follow(meter);
		} else if (there) {
			vgpu_refund(place.card, meter->charged_bytes);
			vgpu_meter_set_charged(meter, 0);
			vgpu_meter_not_current(t, meter);
			__atomic_store_n(&meter->state, VGPU_METER_NONE, __ATOMIC_RELEASE);
		}
		vgpu_unlock(&meter->lock);
	}
}
