#include "charge/refund.h"

#include "charge/device_memory.h"
#include "charge/generations.h"
#include "charge/place.h"
#include "ledger/ledger.h"
#include "loader/hooks.h"
#include "os/lock.h"
#include "os/step.h"
#include "vgpu/region.h"

enum { RELEASE_THRESHOLD = 4 }; /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */

void vgpu_refund_begin(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge)
{
	*charge = (struct vgpu_charge){.gpu = VGPU_GPU_UNMANAGED};
	if (kind != VGPU_KIND_MEMORY || !vgpu_take_memory(key, charge))
		(void)vgpu_ledger_take(kind, key, charge);
	VGPU_AT(FREE_TAKEN);
}

/* Enter the charge again after a failed free. If another call has entered the key meanwhile, the
 * driver had freed the memory, so refund the charge instead. */
static void put_back(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge)
{
	enum vgpu_ledger_put put = vgpu_ledger_put(kind, key, *charge, NULL);
	struct vgpu_charge gone;

	if (put == VGPU_LEDGER_REPLACED)
		vgpu_refund_removed(charge);
	if (put == VGPU_LEDGER_ADDED && !vgpu_generation_is_current(charge->context) &&
	    vgpu_ledger_take(kind, key, &gone))
		vgpu_refund_removed(&gone);
}

void vgpu_refund_end(enum vgpu_kind kind, uint64_t key, const struct vgpu_charge *charge,
		     CUresult driver_result)
{
	if (charge->gpu < 0)
		return;
	VGPU_AT(FREE_CALLED);
	if (kind == VGPU_KIND_MEMORY &&
	    vgpu_release_memory(key, charge, driver_result == CUDA_SUCCESS)) {
		VGPU_AT(FREE_REFUNDED);
		return;
	}
	/* The driver may refuse the free because the context has ended, and its memory with it. If
	 * the ledger has no space for the charge, the charge stays until the process ends. */
	if (driver_result == CUDA_SUCCESS || !vgpu_generation_is_current(charge->context))
		vgpu_refund_removed(charge);
	else
		put_back(kind, key, charge);
	VGPU_AT(FREE_REFUNDED);
}

/* True for a default pool, which the driver refuses to destroy. */
static bool is_default(int gpu, CUmemoryPool pool, CUdevice *device, CUmemoryPool *fallback)
{
	return vgpu_meter_device(gpu, device) &&
	       real_cuDeviceGetDefaultMemPool(fallback, *device) == CUDA_SUCCESS &&
	       *fallback == pool;
}

static bool begin_destruction(struct vgpu_meter *meter, CUmemoryPool pool)
{
	bool first = false;

	if (!vgpu_lock(&meter->lock))
		return false;
	first = vgpu_meter_is(meter, (uint64_t)(uintptr_t)pool, VGPU_METER_POOL);
	if (first)
		__atomic_store_n(&meter->state, VGPU_METER_DESTROYED, __ATOMIC_RELEASE);
	vgpu_unlock(&meter->lock);
	return first;
}

/* The driver keeps a destroyed pool while its memory is in use, but then no longer reports the
 * pool's size. So the library destroys a pool with the driver only when the pool is empty. Until
 * then the program sees only that its GPU's current pool is the default one again. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool)
{
	uint64_t keep_bytes = 0;
	CUmemoryPool fallback = NULL, current;
	CUdevice device = -1;

	if (vgpu_meter_gpu(meter) >= 0 &&
	    is_default(vgpu_meter_gpu(meter), pool, &device, &fallback))
		return real_cuMemPoolDestroy(pool);
	if (!vgpu_meter_enter(meter, 0, 0))
		return CUDA_ERROR_INVALID_VALUE;
	if (!begin_destruction(meter, pool)) { /* another thread was first */
		(void)vgpu_meter_leave(meter);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (fallback) {
		(void)real_cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &keep_bytes);
		if (real_cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == pool)
			(void)real_cuDeviceSetMemPool(device, fallback);
		vgpu_meter_trimmed(meter);
	}
	vgpu_meter_current_changed(vgpu_meter_gpu(meter));
	(void)vgpu_meter_leave(meter);
	return CUDA_SUCCESS;
}

void vgpu_meters_forget(CUdevice device)
{
	struct vgpu_meter *meter;
	struct vgpu_place place;
	uint64_t held_bytes;
	uint32_t at = 0;
	bool gave_float;

	if (vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.gpu < 0)
		return;
	while ((meter = vgpu_meter_next(&at))) {
		if (vgpu_meter_gpu(meter) != place.gpu)
			continue;
		if (vgpu_meter_state(meter) == VGPU_METER_GRAPHS) {
			vgpu_meter_read(meter);
			continue;
		}
		if (!vgpu_lock(&meter->lock))
			continue;
		held_bytes = meter->held_bytes;
		vgpu_meter_set_held(meter, 0);
		gave_float = meter->float_bytes;
		__atomic_store_n(&meter->float_bytes, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&meter->state, VGPU_METER_NONE, __ATOMIC_RELEASE);
		vgpu_unlock(&meter->lock);
		vgpu_refund(place.gpu, held_bytes);
		if (gave_float)
			vgpu_meter_drop_float(place.gpu);
	}
	vgpu_meter_current_changed(place.gpu);
}
