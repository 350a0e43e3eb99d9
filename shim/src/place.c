/*
 * A table of handles: each has WAYS places that it may stand in, and a word beside it that says
 * what it means. That word is unique (a life's number is given once) and 0 while the handle
 * changes, so a reader takes no lock: the same word before and after the handle was read vouches
 * for it. Writers take one.
 *
 * Where WAYS living contexts fill a handle's places, it gets the number 0: what it holds stays
 * charged until it is freed or the process ends.
 */
#include "place.h"

#include <stdbool.h>
#include <stddef.h>

#include "hooks.h"
#include "init.h"
#include "lock.h"
#include "vgpu/region.h"
#include "wiped.h"

enum { HANDLE_BITS = 10, HANDLES = 1 << HANDLE_BITS, WAYS = 16, CACHED_DEVICES = 64 };

struct handle {
	uint64_t meaning; /* life << 32 | card; 0: none */
	CUcontext context;
	uint32_t written; /* number of what stands here, which is given once */
	uint32_t enders;  /* threads that wait for the driver's word on its end */
};

struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;
	uint32_t lives, written; /* numbers given so far */
	struct handle handles[HANDLES];
};

static struct vgpu_wiped *the_table;

static struct table *get_table(void)
{
	return vgpu_wiped_pages(&the_table, sizeof(struct table));
}

static struct handle *way(struct table *table, CUcontext context, unsigned int number)
{
	uint64_t spread = (uint64_t)(uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15);

	return &table->handles[((spread >> (64 - HANDLE_BITS)) + number) % HANDLES];
}

static uint64_t meaning_of(struct vgpu_place place)
{
	return (uint64_t)place.context << 32 | (uint32_t)place.card;
}

static bool known(struct table *table, CUcontext context, struct vgpu_place *place)
{
	for (unsigned int i = 0; i < WAYS; i++) {
		struct handle *handle = way(table, context, i);
		uint64_t meaning = __atomic_load_n(&handle->meaning, __ATOMIC_ACQUIRE);

		if (!meaning || __atomic_load_n(&handle->context, __ATOMIC_ACQUIRE) != context ||
		    __atomic_load_n(&handle->meaning, __ATOMIC_RELAXED) != meaning)
			continue;
		place->card = (int)(uint32_t)meaning;
		place->context = (uint32_t)(meaning >> 32);
		return true;
	}
	return false;
}

/* The handle's own place, else one that nobody alive stands in; the caller holds the lock. */
static struct handle *place_for(struct table *table, CUcontext context)
{
	struct handle *found = NULL;

	for (unsigned int i = 0; i < WAYS; i++) {
		struct handle *handle = way(table, context, i);
		if (handle->meaning && handle->context == context)
			return handle;
		if (!handle->meaning && !found)
			found = handle;
	}
	return found;
}

static void write_down(struct table *table, struct handle *handle, CUcontext context,
		       uint64_t meaning)
{
	handle->written = ++table->written;
	handle->enders = 0;
	__atomic_store_n(&handle->meaning, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&handle->context, context, __ATOMIC_RELEASE);
	__atomic_store_n(&handle->meaning, meaning, __ATOMIC_RELEASE);
}

/* Number this life of the context, or learn which number another thread gave it meanwhile. */
static void begin_life(struct table *table, CUcontext context, struct vgpu_place *place)
{
	struct handle *handle;

	vgpu_lock(&table->lock);
	handle = place_for(table, context);
	if (handle && handle->meaning) {
		place->context = (uint32_t)(handle->meaning >> 32);
	} else if (handle) {
		table->lives += 1 + (table->lives == UINT32_MAX);
		place->context = table->lives;
		write_down(table, handle, context, meaning_of(*place));
	}
	vgpu_unlock(&table->lock);
}

struct vgpu_life vgpu_place_ending(CUcontext context)
{
	struct vgpu_life life = {.context = context};
	struct table *table = get_table();
	struct handle *handle;

	if (!table || !context)
		return life;
	vgpu_lock(&table->lock);
	handle = place_for(table, context);
	if (handle && handle->meaning) {
		life.id = (uint32_t)(handle->meaning >> 32);
		life.written = handle->written;
		handle->enders++;
	}
	vgpu_unlock(&table->lock);
	return life;
}

void vgpu_place_ended(const struct vgpu_life *life, bool ended)
{
	struct table *table = get_table();
	struct handle *handle;

	if (!table || !life->id)
		return;
	vgpu_lock(&table->lock);
	handle = place_for(table, life->context);
	if (handle && handle->meaning && handle->written == life->written) {
		handle->enders--;
		if (ended)
			__atomic_store_n(&handle->meaning, 0, __ATOMIC_RELEASE);
	}
	vgpu_unlock(&table->lock);
}

void vgpu_place_given(CUcontext context)
{
	struct table *table = get_table();
	struct handle *handle;

	if (!table || !context)
		return;
	vgpu_lock(&table->lock);
	handle = place_for(table, context);
	if (handle && handle->meaning && handle->enders)
		__atomic_store_n(&handle->meaning, 0, __ATOMIC_RELEASE);
	vgpu_unlock(&table->lock);
}

bool vgpu_place_lives(uint32_t life)
{
	struct table *table = get_table();
	bool lives = !table || !life;

	if (lives)
		return true;
	vgpu_lock(&table->lock);
	for (int i = 0; i < HANDLES && !lives; i++)
		lives = table->handles[i].meaning >> 32 == life;
	vgpu_unlock(&table->lock);
	return lives;
}

void vgpu_place_join(CUcontext context, struct vgpu_place place)
{
	struct table *table = get_table();
	struct handle *handle;

	if (!table || !context || !place.context)
		return;
	vgpu_lock(&table->lock);
	handle = place_for(table, context);
	if (handle)
		write_down(table, handle, context, meaning_of(place));
	vgpu_unlock(&table->lock);
}

void vgpu_place_forget(uint32_t life)
{
	struct table *table = get_table();

	if (!table || !life)
		return;
	vgpu_lock(&table->lock);
	for (int i = 0; i < HANDLES; i++)
		if (table->handles[i].meaning >> 32 == life)
			__atomic_store_n(&table->handles[i].meaning, 0, __ATOMIC_RELEASE);
	vgpu_unlock(&table->lock);
}

CUcontext vgpu_place_context_on(int card)
{
	struct table *table = get_table();
	CUcontext found = NULL;

	if (!table)
		return NULL;
	vgpu_lock(&table->lock);
	for (int i = 0; i < HANDLES && !found; i++)
		if (table->handles[i].meaning && (int)(uint32_t)table->handles[i].meaning == card)
			found = table->handles[i].context;
	vgpu_unlock(&table->lock);
	return found;
}

/* Address on the bus, as one number that orders as PCI addresses do; 0 where it is not told. */
static uint64_t bus_address(CUdevice device)
{
	static const int attributes[] = {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
					 CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
					 CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
	uint64_t address = 0;

	for (unsigned int i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
		int part = 0;

		(void)real_cuDeviceGetAttribute(&part, attributes[i], device);
		address = address << 20 | (uint32_t)part;
	}
	return address;
}

/* How many of the devices that the program sees come before this one on the bus. */
static int number_of(CUdevice device)
{
	uint64_t own = bus_address(device);
	int count = 0, before = 0;

	(void)real_cuDeviceGetCount(&count);
	for (CUdevice other = 0; other < count; other++)
		before += bus_address(other) < own;
	return before;
}

/* Of a MIG instance the first call names the instance and the second its card. */
static int find_card(CUdevice device)
{
	CUuuid uuid;
	int number = number_of(device), card = VGPU_CARD_NOT_GRANTED;

	if (real_cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
		card = vgpu_card_of_uuid(uuid.bytes, number);
	if (card == VGPU_CARD_NOT_GRANTED && real_cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
		card = vgpu_card_of_uuid(uuid.bytes, number);
	return card;
}

/* Ordinals keep their card for the life of the process. Cached as card + 1; 0 is unknown. */
static int card_of(CUdevice device)
{
	static uint8_t cache[CACHED_DEVICES];
	bool cacheable = device >= 0 && device < CACHED_DEVICES;
	int card = cacheable ? __atomic_load_n(&cache[device], __ATOMIC_RELAXED) - 1 : -1;

	if (card >= 0)
		return card;
	card = find_card(device);
	if (card >= 0 && cacheable)
		__atomic_store_n(&cache[device], (uint8_t)(card + 1), __ATOMIC_RELAXED);
	return card;
}

void vgpu_place_meet_devices(void)
{
	int count = 0;

	if (!vgpu_limits_are_numbered())
		return;
	(void)real_cuDeviceGetCount(&count);
	for (CUdevice device = 0; device < count; device++)
		(void)card_of(device);
}

/* False: `result` is all there is to say. */
static bool is_managed(struct vgpu_place *place, CUresult *result)
{
	enum vgpu_gate gate = vgpu_gate_use();

	*place = (struct vgpu_place){VGPU_CARD_UNMANAGED, 0};
	*result = gate == VGPU_GATE_SHUT ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
	return gate == VGPU_GATE_MANAGED;
}

/* Before CUDA 13 a context's device is asked of the current context alone. */
static CUresult device_of(CUcontext context, CUdevice *device)
{
	CUcontext current, popped;
	CUresult result;

	if (!context || (real_cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context))
		return real_cuCtxGetDevice(device);
	result = real_cuCtxGetDevice_v2(device, context);
	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	result = real_cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuCtxGetDevice(device);
	(void)real_cuCtxPopCurrent_v2(&popped);
	return result;
}

/* A context that the table does not know; of one that is none, the driver says so. */
static CUresult meet(CUcontext context, struct vgpu_place *place)
{
	struct table *table = get_table();
	CUdevice device;
	CUresult result = device_of(context, &device);

	if (result != CUDA_SUCCESS)
		return result;
	place->card = card_of(device);
	if (table && context && place->card != VGPU_CARD_NOT_GRANTED)
		begin_life(table, context, place);
	return CUDA_SUCCESS;
}

static CUresult find(CUcontext context, struct vgpu_place *place)
{
	struct table *table = get_table();

	if (context && table && known(table, context, place))
		return CUDA_SUCCESS;
	return meet(context, place);
}

CUresult vgpu_place_current(struct vgpu_place *place)
{
	CUcontext context = NULL;
	CUresult result;

	if (!is_managed(place, &result))
		return result;
	/* Drivers before CUDA 4 have no such call: there a context has no name. */
	result = real_cuCtxGetCurrent(&context);
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
		return result;
	return find(context, place);
}

CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place)
{
	CUresult result;

	if (!context)
		return vgpu_place_current(place);
	return is_managed(place, &result) ? find(context, place) : result;
}

CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place)
{
	CUresult result;

	if (is_managed(place, &result))
		place->card = card_of(device);
	return result;
}
