/* See meter_table.h. */
#include "charge/meter_table.h"

#include "charge/meters.h"
#include "charge/place.h"

enum { DEVICES = 64 };
enum {
	RESERVED_CURRENT = 5,	    /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
	GRAPH_RESERVED_CURRENT = 2, /* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
};

struct table {
	struct vgpu_fork_wiped wiped;
	struct vgpu_lock lock;			      /* of adding */
	uint32_t top;				      /* every meter in use has a lower index */
	uint16_t current[VGPU_ENVIRONMENT_MAX_GPUS];  /* meter of the GPU's current pool, plus 1; 0:
							 query the driver */
	uint16_t floating[VGPU_ENVIRONMENT_MAX_GPUS]; /* meter with the float, likewise */
	struct vgpu_meter meters[VGPU_METERS];
};

static struct vgpu_fork_wiped *pages;

static struct table *get_table(void)
{
	return vgpu_fork_wiped_pages(&pages, sizeof(struct table));
}

struct vgpu_meter *vgpu_meter_next(uint32_t *at)
{
	struct table *t = __atomic_load_n(&pages, __ATOMIC_ACQUIRE) ? get_table() : NULL;

	while (t && *at < __atomic_load_n(&t->top, __ATOMIC_ACQUIRE)) {
		struct vgpu_meter *meter = &t->meters[(*at)++];

		if (vgpu_meter_state(meter) != VGPU_METER_NONE)
			return meter;
	}
	return NULL;
}

static struct vgpu_meter *search(uint64_t pool, enum vgpu_meter_state state)
{
	struct vgpu_meter *meter;
	uint32_t at = 0;

	while ((meter = vgpu_meter_next(&at)))
		if (vgpu_meter_is(meter, pool, state))
			break;
	return meter;
}

struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool)
{
	return pool ? search((uintptr_t)pool, VGPU_METER_POOL) : NULL;
}

bool vgpu_meter_outlives(CUmemoryPool handle)
{
	return handle && search((uint64_t)(uintptr_t)handle, VGPU_METER_DESTROYED);
}

/* Use a free meter for that pool or GPU. False: the meter is in use, or a thread has not left it
 * yet. */
static bool begin(struct vgpu_meter *meter, enum vgpu_meter_state state, uint64_t pool, int gpu,
		  CUdevice device)
{
	bool is_free;

	if (vgpu_meter_state(meter) != VGPU_METER_NONE || !vgpu_lock(&meter->lock))
		return false;
	is_free = !meter->users;
	if (is_free) {
		__atomic_store_n(&meter->gpu, gpu, __ATOMIC_RELAXED);
		meter->device = device;
		__atomic_store_n(&meter->held_bytes, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&meter->pending_bytes, 0, __ATOMIC_RELAXED);
		meter->latest_bytes = 0;
		meter->read_bytes = meter->begun_bytes; /* which only grows */
		__atomic_store_n(&meter->wait_calls, VGPU_FLOAT_WAIT_CALLS, __ATOMIC_RELAXED);
		__atomic_store_n(&meter->pool, pool, __ATOMIC_RELEASE);
		__atomic_store_n(&meter->state, state, __ATOMIC_RELEASE);
	}
	vgpu_unlock(&meter->lock);
	return is_free;
}

/* The pool's or GPU's meter, or else a new one. NULL: the table is full. */
static struct vgpu_meter *find_or_add(enum vgpu_meter_state state, uint64_t pool, int gpu,
				      CUdevice device)
{
	struct table *t = get_table();
	struct vgpu_meter *meter;

	if (!t || !vgpu_lock(&t->lock))
		return NULL;
	meter = search(pool, state);
	for (uint32_t at = 0; !meter && at < VGPU_METERS; at++) {
		if (!begin(&t->meters[at], state, pool, gpu, device))
			continue;
		meter = &t->meters[at];
		if (at == t->top)
			__atomic_store_n(&t->top, at + 1, __ATOMIC_RELEASE);
	}
	vgpu_unlock(&t->lock);
	return meter;
}

struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int gpu)
{
	return pool ? find_or_add(VGPU_METER_POOL, (uintptr_t)pool, gpu, 0) : NULL;
}

bool vgpu_meter_device(int gpu, CUdevice *device)
{
	struct vgpu_place place;

	for (*device = 0; *device < DEVICES; ++*device) {
		if (vgpu_place_of_device(*device, &place) != CUDA_SUCCESS)
			return false;
		if (place.gpu == gpu)
			return true;
	}
	return false;
}

struct vgpu_meter *vgpu_meter_current(int gpu)
{
	struct table *t = gpu >= 0 ? get_table() : NULL;
	struct vgpu_meter *meter;
	CUmemoryPool pool;
	CUdevice device;
	uint16_t index = t ? __atomic_load_n(&t->current[gpu], __ATOMIC_ACQUIRE) : 0;

	if (index)
		return &t->meters[index - 1];
	if (!t || !vgpu_meter_device(gpu, &device) ||
	    real_cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
		return NULL;
	meter = vgpu_meter_add(pool, gpu);
	if (meter)
		__atomic_store_n(&t->current[gpu], (uint16_t)(meter - t->meters + 1),
				 __ATOMIC_RELEASE);
	return meter;
}

void vgpu_meter_current_changed(int gpu)
{
	struct table *t = gpu >= 0 ? get_table() : NULL;

	if (t)
		__atomic_store_n(&t->current[gpu], 0, __ATOMIC_RELEASE);
}

bool vgpu_meter_take_float(const struct vgpu_meter *meter)
{
	struct table *t = get_table();
	uint16_t owner = 0, own = (uint16_t)(meter - t->meters + 1);

	if (__atomic_compare_exchange_n(&t->floating[meter->gpu], &owner, own, false,
					__ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
		vgpu_set_float(meter->gpu, VGPU_FLOAT_BYTES);
		return true;
	}
	__atomic_store_n(&t->meters[owner - 1].wait_calls, VGPU_FLOAT_WAIT_CALLS, __ATOMIC_RELAXED);
	return false;
}

void vgpu_meter_drop_float(int gpu)
{
	vgpu_set_float(gpu, 0);
	__atomic_store_n(&get_table()->floating[gpu], 0, __ATOMIC_RELEASE);
}

struct vgpu_meter *vgpu_meter_graphs(int gpu)
{
	struct vgpu_meter *meter = gpu >= 0 ? search((uint64_t)gpu, VGPU_METER_GRAPHS) : NULL;
	CUdevice device;

	if (!meter && gpu >= 0 && vgpu_meter_device(gpu, &device))
		meter = find_or_add(VGPU_METER_GRAPHS, (uint64_t)gpu, gpu, device);
	return meter;
}

bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;

	if (vgpu_meter_state(meter) == VGPU_METER_GRAPHS)
		return real_cuDeviceGetGraphMemAttribute(meter->device, GRAPH_RESERVED_CURRENT,
							 bytes) == CUDA_SUCCESS;
	return real_cuMemPoolGetAttribute(pool, RESERVED_CURRENT, bytes) == CUDA_SUCCESS;
}
