/* See meter.h. */
#include "meter.h"

#include "execs.h"
#include "lock.h"
#include "vgpu/region.h"
#include "wiped.h"

/* The driver's pools grow by so much at a time (seen from CUDA 11.2 on), or by one larger request.
 */
#define CHUNK_BYTES (UINT64_C(32) << 20)

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
	bool tight; /* the last growth did not fit: reserve before the next */
};

static struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;		   /* of adding and removing */
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

static bool is_pool(const struct vgpu_meter *meter, uint64_t pool)
{
	return __atomic_load_n(&meter->pool, __ATOMIC_RELAXED) == pool &&
	       __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE) == METER_POOL;
}

struct vgpu_meter *vgpu_meter_find(CUmemoryPool handle)
{
	struct table *t = table();
	uint64_t pool = (uint64_t)(uintptr_t)handle;
	uint32_t top, hint = hint_of(pool);

	if (!t || !pool)
		return NULL;
	top = __atomic_load_n(&t->hints[hint], __ATOMIC_RELAXED);
	if (is_pool(&t->meters[top], pool))
		return &t->meters[top];
	top = __atomic_load_n(&t->top, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < top; i++) {
		if (!is_pool(&t->meters[i], pool))
			continue;
		__atomic_store_n(&t->hints[hint], (uint16_t)i, __ATOMIC_RELAXED);
		return &t->meters[i];
	}
	return NULL;
}

/* With the table's lock. */
static struct vgpu_meter *add(struct table *t, enum meter_state state, uint64_t pool, int card)
{
	uint32_t at = 0;

	while (at < t->top && t->meters[at].state != METER_NONE)
		at++;
	if (at == VGPU_METERS)
		return NULL;
	t->meters[at].pool = pool;
	t->meters[at].card = card;
	t->meters[at].charged_bytes = 0;
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

void vgpu_meter_set_current(int card, CUmemoryPool pool)
{
	struct table *t = table();
	struct vgpu_meter *meter = pool ? vgpu_meter_add(pool, card) : NULL;
	uint16_t index = meter ? (uint16_t)(meter - t->meters + 1) : 0;

	if (t && card >= 0)
		__atomic_store_n(&t->current[card], index, __ATOMIC_RELEASE);
}

struct vgpu_meter *vgpu_meter_current(int card)
{
	struct table *t = table();
	CUmemoryPool pool;
	CUdevice device;
	uint16_t index;

	if (!t || card < 0)
		return NULL;
	index = __atomic_load_n(&t->current[card], __ATOMIC_ACQUIRE);
	if (index)
		return &t->meters[index - 1];
	if (!device_of_card(card, &device) ||
	    real_cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
		return NULL;
	vgpu_meter_set_current(card, pool);
	return vgpu_meter_find(pool);
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

/* What the driver says; where it does not, what was said before. */
static uint64_t ask(const struct vgpu_meter *meter, int pool_attribute, int graph_attribute)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;
	uint64_t bytes;
	CUresult result;

	if (meter->state == METER_GRAPHS)
		result = real_cuDeviceGetGraphMemAttribute(meter->device, graph_attribute, &bytes);
	else
		result = real_cuMemPoolGetAttribute(pool, pool_attribute, &bytes);
	return result == CUDA_SUCCESS ? bytes : meter->charged_bytes;
}

static uint64_t reserved_bytes(const struct vgpu_meter *meter)
{
	return ask(meter, RESERVED_CURRENT, GRAPH_RESERVED_CURRENT);
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
	if (after < before && meter->state == METER_GRAPHS)
		vgpu_execs_trimmed(meter->card);
	return after < before;
}

static CUresult give_back(struct vgpu_meter *meter, uint64_t keep_bytes)
{
	if (meter->state == METER_GRAPHS)
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
	__atomic_store_n(&meter->tight, true, __ATOMIC_RELAXED);
	return undone ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult attempt(struct vgpu_meter *meter, const struct vgpu_reservation *reservation,
			const struct vgpu_metered_call *call, bool *settled)
{
	CUresult result;
	uint64_t after_bytes;

	vgpu_lock(&meter->lock);
	result = call->take(call);
	if (result == CUDA_SUCCESS) {
		after_bytes = reserved_bytes(meter);
		*settled =
		    vgpu_settle(reservation, meter->charged_bytes, after_bytes) == CUDA_SUCCESS;
		if (*settled)
			set_charged(meter, after_bytes);
		else
			result = undo(meter, call);
	}
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
	uint64_t used_bytes = ask(meter, USED_CURRENT, GRAPH_USED_CURRENT);

	return reserved_bytes(meter) >= used_bytes && reserved_bytes(meter) - used_bytes >= bytes;
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
static bool reserve_growth(struct vgpu_meter *meter, struct vgpu_reservation *reservation,
			   uint64_t bytes)
{
	if (bytes < CHUNK_BYTES && try_reserve(reservation, CHUNK_BYTES)) {
		__atomic_store_n(&meter->tight, false, __ATOMIC_RELAXED);
		return true;
	}
	return try_reserve(reservation, bytes);
}

/*
 * Most calls are served by what a pool holds, so nothing is reserved where that is likely or a
 * chunk at most can be taken: if it then grows and that does not fit, the call is undone. The card
 * has for that one call given up to a chunk too much, and not again before there was room for one.
 */
static bool may_try(const struct vgpu_meter *meter, uint64_t bytes,
		    const struct vgpu_metered_call *call)
{
	if (!bytes)
		return true;
	if (!call->undo)
		return false;
	return (bytes <= CHUNK_BYTES && !__atomic_load_n(&meter->tight, __ATOMIC_RELAXED)) ||
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
	if (!reserve_growth(meter, &reservation, bytes)) {
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
	if (meter->state != METER_DESTROYED || meter->charged_bytes || reserved_bytes(meter))
		return;
	real_cuMemPoolDestroy((CUmemoryPool)(uintptr_t)meter->pool);
	__atomic_store_n(&meter->state, METER_NONE, __ATOMIC_RELEASE);
}

static bool in_use(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE) != METER_NONE &&
	       __atomic_load_n(&meter->charged_bytes, __ATOMIC_RELAXED);
}

void vgpu_meters_read_all(void)
{
	struct table *t = table();
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		if (!in_use(meter) || reserved_bytes(meter) == meter->charged_bytes)
			continue;
		vgpu_lock(&meter->lock);
		if (in_use(meter))
			follow(meter);
		bury(meter);
		vgpu_unlock(&meter->lock);
	}
}

bool vgpu_meters_trim(int card)
{
	struct table *t = vgpu_meters_live ? table() : NULL;
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	bool gained = false;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		if (!in_use(meter) || meter->card != card)
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

static void forget_current(struct table *t, const struct vgpu_meter *meter)
{
	uint16_t index = (uint16_t)(meter - t->meters + 1);

	for (int card = 0; card < VGPU_MOST_CARDS; card++)
		if (__atomic_load_n(&t->current[card], __ATOMIC_RELAXED) == index)
			__atomic_store_n(&t->current[card], 0, __ATOMIC_RELEASE);
}

/*
 * A driver lets a destroyed pool live on until nothing of it is in use, and its handle can then no
 * longer be asked. So a pool that is in use stays, and is destroyed when it is not: all the program
 * can tell is that its card's current pool is the default one again.
 */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool)
{
	uint64_t keep_bytes = 0;
	CUmemoryPool fallback;
	CUdevice device;
	CUresult result = CUDA_SUCCESS;

	vgpu_lock(&meter->lock);
	if (meter->card >= 0)
		shrink(meter, NULL, 0);
	follow(meter);
	forget_current(table(), meter);
	if (meter->card < 0 || !meter->charged_bytes) {
		result = real_cuMemPoolDestroy(pool);
		if (result == CUDA_SUCCESS)
			__atomic_store_n(&meter->state, METER_NONE, __ATOMIC_RELEASE);
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
	vgpu_unlock(&meter->lock);
	return result;
}

void vgpu_meters_forget(CUdevice device)
{
	struct table *t = vgpu_meters_live ? table() : NULL;
	uint32_t top = t ? __atomic_load_n(&t->top, __ATOMIC_ACQUIRE) : 0;
	struct vgpu_place place;

	if (!top || vgpu_place_of_device(device, &place) != CUDA_SUCCESS || place.card < 0)
		return;

	for (uint32_t i = 0; i < top; i++) {
		struct vgpu_meter *meter = &t->meters[i];

		vgpu_lock(&meter->lock);
		if (meter->state == METER_GRAPHS && meter->card == place.card) {
			follow(meter);
		} else if (meter->state != METER_NONE && meter->card == place.card) {
			vgpu_refund(place.card, meter->charged_bytes);
			set_charged(meter, 0);
			forget_current(t, meter);
			__atomic_store_n(&meter->state, METER_NONE, __ATOMIC_RELEASE);
		}
		vgpu_unlock(&meter->lock);
	}
}
