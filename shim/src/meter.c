/* See meter.h. */
#include "meter.h"

#include "execs.h"
#include "lock.h"
#include "vgpu/region.h"
#include "wiped.h"

/* The driver's pools grow by so much at a time (seen from CUDA 11.2 on), or by one larger request.
 */
#define CHUNK_BYTES (UINT64_C(32) << 20)
/* So much below the limit a pool may grow by a chunk before anything is reserved. */
#define FAR_BYTES (8 * CHUNK_BYTES)

enum {
	HINTS = 64,
	DEVICES = 64,
	RELAXED = 2,	      /* CU_STREAM_CAPTURE_MODE_RELAXED */
	RESERVED_CURRENT = 5, /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
	USED_CURRENT = 7,     /* CU_MEMPOOL_ATTR_USED_MEM_CURRENT */
	RELEASE_THRESHOLD = 4,
	GRAPH_RESERVED_CURRENT = 2, /* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
	GRAPH_USED_CURRENT = 0,
};

enum meter_state { METER_NONE, METER_POOL, METER_DESTROYED, METER_GRAPHS };

struct vgpu_meter {
	struct vgpu_lock lock;
	uint32_t state;
	uint64_t pool; /* the handle */
	int32_t card;
	CUdevice device; /* of graphs */
	uint64_t charged_bytes;
};

static struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;		   /* of adding and removing */
	struct vgpu_lock changing;	   /* of current pools; taken before a meter's */
	uint32_t top;			   /* no meter in use at or above */
	uint16_t hints[HINTS];		   /* by a pool's handle: where it was last found */
	uint16_t current[VGPU_MOST_CARDS]; /* index + 1 of the card's current pool; 0: ask */
	uint16_t graphs[VGPU_MOST_CARDS];  /* index + 1 */
	struct vgpu_meter meters[VGPU_METERS];
} *shared;

uint32_t vgpu_meters_live;

static struct table *table(void)
{
	return vgpu_wiped_pages((struct vgpu_wiped **)&shared, sizeof(struct table));
}

int vgpu_meter_card(const struct vgpu_meter *meter)
{
	return meter->card;
}

static uint32_t hint_of(uint64_t pool)
{
	return (uint32_t)((pool * UINT64_C(0x9e3779b97f4a7c15)) >> 58);
}

static uint32_t state_of(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE);
}

static uint64_t charged(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->charged_bytes, __ATOMIC_RELAXED);
}

/* In this order: a meter that begins another life has its pool before its state. */
static bool is_pool(const struct vgpu_meter *meter, uint64_t pool, enum meter_state state)
{
	return state_of(meter) == state && __atomic_load_n(&meter->pool, __ATOMIC_ACQUIRE) == pool;
}

static struct vgpu_meter *search(struct table *t, uint64_t pool, enum meter_state state)
{
	uint32_t top = __atomic_load_n(&t->top, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < top; i++)
		if (is_pool(&t->meters[i], pool, state))
			return &t->meters[i];
	return NULL;
}

struct vgpu_meter *vgpu_meter_find(CUmemoryPool handle)
{
	struct table *t = table();
	uint64_t pool = (uint64_t)(uintptr_t)handle;
	uint32_t hint = hint_of(pool);
	struct vgpu_meter *meter;

	if (!t || !pool)
		return NULL;
	meter = &t->meters[__atomic_load_n(&t->hints[hint], __ATOMIC_RELAXED)];
	if (is_pool(meter, pool, METER_POOL))
		return meter;
	meter = search(t, pool, METER_POOL);
	if (meter)
		__atomic_store_n(&t->hints[hint], (uint16_t)(meter - t->meters), __ATOMIC_RELAXED);
	return meter;
}

bool vgpu_meter_outlives(CUmemoryPool handle)
{
	struct table *t = table();

	return t && handle && search(t, (uint64_t)(uintptr_t)handle, METER_DESTROYED);
}

/* With the table's lock. */
static struct vgpu_meter *add(struct table *t, enum meter_state state, uint64_t pool, int card)
{
	uint32_t at = 0;

	while (at < t->top && state_of(&t->meters[at]) != METER_NONE)
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
	struct table *t = table();
	struct vgpu_meter *meter;

	if (!t || !pool)
		return NULL;
	vgpu_lock(&t->lock);
	meter = vgpu_meter_find(pool);
	if (!meter)
		meter = add(t, METER_POOL, (uint64_t)(uintptr_t)pool, card);
	vgpu_unlock(&t->lock);
	return meter;
}

static bool device_of_card(int card, CUdevice *device)
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

static uint16_t current_index(const struct table *t, int card)
{
	return __atomic_load_n(&t->current[card], __ATOMIC_ACQUIRE);
}

/* With the lock of changing. */
static void set_current(struct table *t, int card, CUmemoryPool pool)
{
	struct vgpu_meter *meter = vgpu_meter_add(pool, card);
	uint16_t index = meter ? (uint16_t)(meter - t->meters + 1) : 0;

	__atomic_store_n(&t->current[card], index, __ATOMIC_RELEASE);
}

/* With the lock of changing. */
static struct vgpu_meter *find_current(struct table *t, int card)
{
	CUmemoryPool pool;
	CUdevice device;

	if (!current_index(t, card) && device_of_card(card, &device) &&
	    real_cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS)
		set_current(t, card, pool);
	return current_index(t, card) ? &t->meters[current_index(t, card) - 1] : NULL;
}

struct vgpu_meter *vgpu_meter_current(int card)
{
	struct table *t = table();
	struct vgpu_meter *meter;
	uint16_t index;

	if (!t || card < 0)
		return NULL;
	index = current_index(t, card);
	if (index)
		return &t->meters[index - 1];
	vgpu_lock(&t->changing);
	meter = find_current(t, card);
	vgpu_unlock(&t->changing);
	return meter;
}

struct vgpu_meter *vgpu_meter_hold_current(int card)
{
	struct table *t = table();
	struct vgpu_meter *meter;

	if (!t || card < 0)
		return NULL;
	vgpu_lock(&t->changing);
	meter = find_current(t, card);
	if (meter)
		vgpu_lock(&meter->lock);
	else
		vgpu_unlock(&t->changing);
	return meter;
}

void vgpu_meter_let_current(struct vgpu_meter *held, int card, CUmemoryPool now)
{
	struct table *t = table();

	if (!held)
		return;
	if (now)
		set_current(t, card, now);
	vgpu_unlock(&held->lock);
	vgpu_unlock(&t->changing);
}

static bool is_current(const struct vgpu_meter *meter)
{
	const struct table *t = table();

	return current_index(t, meter->card) == meter - t->meters + 1;
}

struct vgpu_meter *vgpu_meter_graphs(int card)
{
	struct table *t = table();
	struct vgpu_meter *meter = NULL;
	CUdevice device;
	uint16_t index;

	if (!t || card < 0)
		return NULL;
	index = __atomic_load_n(&t->graphs[card], __ATOMIC_ACQUIRE);
	if (index)
		return &t->meters[index - 1];
	if (!device_of_card(card, &device))
		return NULL;
	vgpu_lock(&t->lock);
	if (!t->graphs[card] && (meter = add(t, METER_GRAPHS, 0, card))) {
		meter->device = device;
		__atomic_store_n(&t->graphs[card], (uint16_t)(meter - t->meters + 1),
				 __ATOMIC_RELEASE);
	}
	vgpu_unlock(&t->lock);
	return t->graphs[card] ? &t->meters[t->graphs[card] - 1] : NULL;
}

/* False: the driver does not say. */
static bool ask(const struct vgpu_meter *meter, int pool_attribute, int graph_attribute,
		uint64_t *bytes)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;

	if (state_of(meter) == METER_GRAPHS)
		return real_cuDeviceGetGraphMemAttribute(meter->device, graph_attribute, bytes) ==
		       CUDA_SUCCESS;
	return real_cuMemPoolGetAttribute(pool, pool_attribute, bytes) == CUDA_SUCCESS;
}

static bool ask_reserved(const struct vgpu_meter *meter, uint64_t *bytes)
{
	return ask(meter, RESERVED_CURRENT, GRAPH_RESERVED_CURRENT, bytes);
}

/* What the driver says; where it does not, what was said before. */
static uint64_t reserved_bytes(const struct vgpu_meter *meter)
{
	uint64_t bytes;

	return ask_reserved(meter, &bytes) ? bytes : charged(meter);
}

static void set_charged(struct vgpu_meter *meter, uint64_t bytes)
{
	bool before = meter->charged_bytes, after = bytes;

	__atomic_store_n(&meter->charged_bytes, bytes, __ATOMIC_RELAXED);
	if (before != after)
		__atomic_add_fetch(&vgpu_meters_live, after ? 1 : -1, __ATOMIC_RELAXED);
}

/* With the lock: charge what is reserved, whatever the limit; true if it has become less. */
static bool follow(struct vgpu_meter *meter)
{
	uint64_t before = meter->charged_bytes, after = reserved_bytes(meter);

	if (meter->card < 0 || after == before)
		return false;
	if (after < before)
		vgpu_refund(meter->card, before - after);
	else if (vgpu_charge(meter->card, after - before) != VGPU_OK)
		return false;
	set_charged(meter, after);
	if (after < before && state_of(meter) == METER_GRAPHS)
		vgpu_execs_trimmed(meter->card);
	return after < before;
}

static CUresult give_back(struct vgpu_meter *meter, uint64_t keep_bytes)
{
	if (state_of(meter) == METER_GRAPHS)
		return real_cuDeviceGraphMemTrim(meter->device);
	return real_cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)meter->pool, keep_bytes);
}

/*
 * Undo the call (if there is one), and have the driver give back what is above keep_bytes and not
 * in use. A capture, whoever makes it, must not mind: hence the mode.
 */
static CUresult shrink(struct vgpu_meter *meter, const struct vgpu_metered_call *call,
		       uint64_t keep_bytes)
{
	int mode = RELAXED;
	CUresult exchanged = real_cuThreadExchangeStreamCaptureMode(&mode);
	CUresult result = call ? call->undo(call) : CUDA_SUCCESS;

	if (result == CUDA_SUCCESS)
		result = give_back(meter, keep_bytes);
	if (exchanged == CUDA_SUCCESS)
		real_cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}

/* As it was before, and refused; what cannot be undone is kept, and charged. */
static CUresult undo(struct vgpu_meter *meter, const struct vgpu_metered_call *call)
{
	bool undone = call->undo && shrink(meter, call, meter->charged_bytes) == CUDA_SUCCESS;

	follow(meter);
	return undone ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void forget_current(struct table *t, const struct vgpu_meter *meter)
{
	uint16_t index = (uint16_t)(meter - t->meters + 1);

	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (__atomic_load_n(&t->current[card], __ATOMIC_RELAXED) == index)
			__atomic_store_n(&t->current[card], 0, __ATOMIC_RELEASE);
}

/* The driver may have done away with a pool, and made another current. */
static void recheck_current(const struct vgpu_meter *meter)
{
	CUmemoryPool now;
	CUdevice device;

	if (!device_of_card(meter->card, &device) ||
	    real_cuDeviceGetMemPool(&now, device) != CUDA_SUCCESS ||
	    (uint64_t)(uintptr_t)now != meter->pool)
		forget_current(table(), meter);
}

/* With the lock, after the driver gave: what cannot be charged is not kept. */
static CUresult settle(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
		       const struct vgpu_metered_call *call, bool *settled)
{
	uint64_t after_bytes;

	if (!ask_reserved(meter, &after_bytes)) {
		recheck_current(meter);
		return undo(meter, call);
	}
	*settled = vgpu_settle(reservation, meter->charged_bytes, after_bytes) == CUDA_SUCCESS;
	if (!*settled)
		return undo(meter, call);
	set_charged(meter, after_bytes);
	return CUDA_SUCCESS;
}

static CUresult attempt(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
			const struct vgpu_metered_call *call, bool *settled)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	vgpu_lock(&meter->lock);
	if (call->moved)
		*call->moved = !is_current(meter);
	if (!call->moved || !*call->moved)
		result = call->take(call);
	if (result == CUDA_SUCCESS)
		result = settle(meter, reservation, call, settled);
	vgpu_unlock(&meter->lock);
	return result;
}

static CUresult call_reserved(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
			      const struct vgpu_metered_call *call)
{
	bool settled = false;
	CUresult result;

	VGPU_CALL_RESERVED(result, reservation, attempt(meter, reservation, call, &settled));
	if (!settled && reservation->bytes)
		vgpu_cancel(reservation);
	return result;
}

/* What the meter holds and nothing uses may serve the call without growing. If it grows after all,
 * the call must be undone. */
static bool may_serve(const struct vgpu_meter *meter, uint64_t bytes)
{
	uint64_t used_bytes, held_bytes;

	return ask(meter, USED_CURRENT, GRAPH_USED_CURRENT, &used_bytes) &&
	       ask_reserved(meter, &held_bytes) && held_bytes >= used_bytes &&
	       held_bytes - used_bytes >= bytes;
}

/* A captured call takes no memory: it becomes a node of a graph. */
static bool is_capturing(const struct vgpu_metered_call *call)
{
	int status = 0;

	return real_cuStreamIsCapturing(call->capturing, &status) == CUDA_SUCCESS && status;
}

static bool try_reserve(struct vgpu_reservation *reservation, uint64_t bytes)
{
	reservation->bytes = bytes;
	return vgpu_reserve(reservation->place.card, bytes) == VGPU_OK;
}

/* For what the meter does not hold already: a whole chunk, or at least what is asked for. */
static bool reserve_growth(struct vgpu_reservation *reservation, uint64_t bytes)
{
	return (bytes < CHUNK_BYTES && try_reserve(reservation, CHUNK_BYTES)) ||
	       try_reserve(reservation, bytes);
}

/*
 * Most calls are served by what a pool holds, so nothing is reserved where that is likely, or where
 * a chunk more is far from the limit: if it then grows and that does not fit, the call is undone.
 */
static bool may_try(const struct vgpu_meter *meter, uint64_t bytes,
		    const struct vgpu_metered_call *call)
{
	if (!bytes)
		return true;
	if (!call->undo)
		return false;
	return (bytes <= CHUNK_BYTES && vgpu_fits(meter->card, FAR_BYTES)) ||
	       may_serve(meter, bytes);
}

/* False: there is no room for it, and the driver was not asked. */
static bool call_once(struct vgpu_meter *meter, uint64_t bytes,
		      const struct vgpu_metered_call *call, CUresult *result)
{
	struct vgpu_reservation reservation = {.place = {.card = meter->card}};

	if (may_try(meter, bytes, call)) {
		*result = call_reserved(meter, &reservation, call);
		if (*result != CUDA_ERROR_OUT_OF_MEMORY)
			return true;
	}
	if (!reserve_growth(&reservation, bytes)) {
		if (!is_capturing(call))
			return false;
		reservation.bytes = 0;
	}
	*result = call_reserved(meter, &reservation, call);
	return true;
}

CUresult vgpu_meter_call(struct vgpu_meter *meter, uint64_t bytes,
			 const struct vgpu_metered_call *call)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (meter->card == VGPU_CARD_UNMANAGED)
		return call->take(call);
	if (meter->card < 0)
		return result;
	if (call_once(meter, bytes, call, &result) && result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	if (bytes && vgpu_meters_trim(meter->card))
		call_once(meter, bytes, call, &result);
	return result;
}

/* A destroyed pool that holds nothing any more goes now; it is nobody else's. */
static void bury(struct vgpu_meter *meter)
{
	if (state_of(meter) != METER_DESTROYED || meter->charged_bytes || reserved_bytes(meter))
		return;
	real_cuMemPoolDestroy((CUmemoryPool)(uintptr_t)meter->pool);
	__atomic_store_n(&meter->state, METER_NONE, __ATOMIC_RELEASE);
}

static bool in_use(const struct vgpu_meter *meter)
{
	return state_of(meter) != METER_NONE && charged(meter);
}

void vgpu_meters_read_all(void)
{
	struct table *t = table();
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		/* Whoever is in a call that may take more reads it after that. Asked under the
		 * lock: another thread may destroy the pool. */
		if (!in_use(meter) || !vgpu_trylock(&meter->lock))
			continue;
		if (in_use(meter))
			follow(meter);
		bury(meter);
		vgpu_unlock(&meter->lock);
	}
}

bool vgpu_meters_trim(int card)
{
	struct table *t = __atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED) ? table() : NULL;
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	bool gained = false;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		if (!in_use(meter) || __atomic_load_n(&meter->card, __ATOMIC_RELAXED) != card)
			continue;
		vgpu_lock(&meter->lock);
		if (in_use(meter)) {
			shrink(meter, NULL, 0);
			gained |= follow(meter);
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

	__atomic_store_n(&meter->state, METER_DESTROYED, __ATOMIC_RELEASE);
	result = real_cuMemPoolDestroy(pool);
	__atomic_store_n(&meter->state, result == CUDA_SUCCESS ? METER_NONE : METER_POOL,
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
	struct table *t = table();
	CUmemoryPool fallback;
	CUdevice device;
	CUresult result = CUDA_SUCCESS;

	vgpu_lock(&t->changing);
	vgpu_lock(&meter->lock);
	if (meter->card >= 0)
		shrink(meter, NULL, 0);
	follow(meter);
	if (!is_pool(meter, (uint64_t)(uintptr_t)pool, METER_POOL)) {
		result = CUDA_ERROR_INVALID_VALUE; /* another thread was first */
	} else if (meter->card < 0 || !meter->charged_bytes) {
		result = destroy_now(meter, pool);
	} else if (device_of_card(meter->card, &device) &&
		   real_cuDeviceGetDefaultMemPool(&fallback, device) == CUDA_SUCCESS) {
		if (fallback == pool) {
			result = real_cuMemPoolDestroy(pool); /* the driver refuses */
		} else {
			real_cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &keep_bytes);
			if (real_cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS &&
			    (uint64_t)(uintptr_t)pool == meter->pool)
				real_cuDeviceSetMemPool(device, fallback);
			__atomic_store_n(&meter->state, METER_DESTROYED, __ATOMIC_RELEASE);
		}
	}
	forget_current(t, meter);
	vgpu_unlock(&meter->lock);
	vgpu_unlock(&t->changing);
	return result;
}

void vgpu_meters_forget(CUdevice device)
{
	struct table *t = table();
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	struct vgpu_place place;

	if (!top || vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.card < 0)
		return;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		vgpu_lock(&meter->lock);
		bool there = state_of(meter) != METER_NONE && meter->card == place.card;
		if (there && state_of(meter) == METER_GRAPHS) {
			follow(meter);
		} else if (there) {
			vgpu_refund(place.card, meter->charged_bytes);
			set_charged(meter, 0);
			forget_current(t, meter);
			__atomic_store_n(&meter->state, METER_NONE, __ATOMIC_RELEASE);
		}
		vgpu_unlock(&meter->lock);
	}
}
