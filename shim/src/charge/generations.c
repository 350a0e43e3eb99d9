/*
 * See generations.h. The file has a hash table of context handles: a handle may occupy any of WAYS
 * entries. The field `meaning` of an entry is the generation and the GPU. It is 0 while the entry
 * changes, and does not have the same value again soon, because a generation has its own number. So
 * a reader needs no lock: if it reads the same `meaning` before and after `context`, the two belong
 * together. Writers take the lock.
 *
 * The low bits of a generation's number are the index of the entry in which it began. That entry
 * keeps it until it ends. The other bits are of the entry's serial number, so an entry may give a
 * number again after four million.
 *
 * If other contexts occupy all WAYS entries of a handle, its context gets generation 0. What is
 * allocated in it stays charged until it is freed or the process ends.
 */
#include "charge/generations.h"

#include <stddef.h>

#include "os/fork_wiped.h"
#include "os/lock.h"

enum { HANDLE_BITS = 10, HANDLES = 1 << HANDLE_BITS, WAYS = 16 };

struct handle {
	uint64_t meaning; /* generation << 32 | GPU; 0: none */
	CUcontext context;
	uint32_t serial; /* each write of an entry has its own number */
	uint64_t driver_id;
};

struct table {
	struct vgpu_fork_wiped wiped;
	struct vgpu_lock lock;
	uint32_t serials; /* the highest number given so far */
	struct handle handles[HANDLES];
};

static struct vgpu_fork_wiped *the_table;

static struct table *get_table(void)
{
	return vgpu_fork_wiped_pages(&the_table, sizeof(struct table));
}

/* The table, locked. NULL: not available. */
static struct table *enter(void)
{
	struct table *table = get_table();

	return table && vgpu_lock(&table->lock) ? table : NULL;
}

static struct handle *way(struct table *table, CUcontext context, unsigned int number)
{
	uint64_t spread = (uint64_t)(uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15);

	return &table->handles[((spread >> (64 - HANDLE_BITS)) + number) % HANDLES];
}

static uint64_t meaning_of(struct vgpu_place place)
{
	return (uint64_t)place.context << 32 | (uint32_t)place.gpu;
}

static uint32_t generation_of(const struct handle *handle)
{
	return (uint32_t)(handle->meaning >> 32);
}

bool vgpu_generation_known(CUcontext context, struct vgpu_place *place)
{
	struct table *table = get_table();

	for (unsigned int i = 0; table && i < WAYS; i++) {
		struct handle *handle = way(table, context, i);
		uint64_t meaning = __atomic_load_n(&handle->meaning, __ATOMIC_ACQUIRE);

		if (!meaning || __atomic_load_n(&handle->context, __ATOMIC_ACQUIRE) != context ||
		    __atomic_load_n(&handle->meaning, __ATOMIC_RELAXED) != meaning)
			continue;
		place->gpu = (int)(uint32_t)meaning;
		place->context = (uint32_t)(meaning >> 32);
		return true;
	}
	return false;
}

uint32_t vgpu_generations_serial(void)
{
	const struct table *table = get_table();

	return table ? __atomic_load_n(&table->serials, __ATOMIC_ACQUIRE) : 0;
}

/* The handle's own entry, or else a free one, or else NULL. The caller holds the lock. */
static struct handle *entry_for(struct table *table, CUcontext context)
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
		       struct vgpu_place place, uint64_t driver_id)
{
	handle->serial = table->serials + 1;
	__atomic_store_n(&table->serials, handle->serial, __ATOMIC_RELEASE);
	handle->driver_id = driver_id;
	__atomic_store_n(&handle->meaning, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&handle->context, context, __ATOMIC_RELEASE);
	__atomic_store_n(&handle->meaning, meaning_of(place), __ATOMIC_RELEASE);
}

static bool is_same(const struct handle *handle, uint64_t driver_id, uint32_t serial)
{
	return handle->driver_id && driver_id ? handle->driver_id == driver_id
					      : handle->serial > serial;
}

bool vgpu_generation_begin(CUcontext context, uint64_t driver_id, uint32_t serial,
			   struct vgpu_place *place, uint32_t *replaced)
{
	struct table *table = enter();
	struct handle *handle;
	bool begins = false;

	*replaced = 0;
	if (!table)
		return false;
	handle = entry_for(table, context);
	if (handle && handle->meaning && is_same(handle, driver_id, serial)) {
		place->context = generation_of(handle);
	} else if (handle) {
		place->context =
		    (table->serials + 1) << HANDLE_BITS | (uint32_t)(handle - table->handles);
		*replaced = handle->meaning ? generation_of(handle) : 0;
		write_down(table, handle, context, *place, driver_id);
		begins = true;
	}
	vgpu_unlock(&table->lock);
	return begins;
}

struct vgpu_generation vgpu_generation_of(CUcontext context)
{
	struct vgpu_generation generation = {0};
	struct table *table = context ? enter() : NULL;
	const struct handle *handle;

	if (!table)
		return generation;
	handle = entry_for(table, context);
	if (handle && handle->meaning)
		generation = (struct vgpu_generation){generation_of(handle), handle->driver_id};
	vgpu_unlock(&table->lock);
	return generation;
}

void vgpu_generation_ended(uint32_t generation)
{
	struct table *table = generation ? enter() : NULL;

	if (!table)
		return;
	for (int i = 0; i < HANDLES; i++)
		if (table->handles[i].meaning && generation_of(&table->handles[i]) == generation)
			__atomic_store_n(&table->handles[i].meaning, 0, __ATOMIC_RELEASE);
	vgpu_unlock(&table->lock);
}

bool vgpu_generation_is_current(uint32_t generation)
{
	const struct table *table = generation ? get_table() : NULL;
	uint64_t meaning;

	if (!table)
		return true;
	meaning = __atomic_load_n(&table->handles[generation % HANDLES].meaning, __ATOMIC_ACQUIRE);
	return meaning >> 32 == generation;
}

bool vgpu_generation_any_on(int gpu)
{
	struct table *table = enter();
	bool found = false;

	if (!table)
		return false;
	for (int i = 0; i < HANDLES && !found; i++)
		found =
		    table->handles[i].meaning && (int)(uint32_t)table->handles[i].meaning == gpu;
	vgpu_unlock(&table->lock);
	return found;
}

void vgpu_generation_join(CUcontext context, struct vgpu_place place)
{
	struct table *table = context && place.context ? enter() : NULL;
	struct handle *handle;

	if (!table)
		return;
	handle = entry_for(table, context);
	if (handle)
		write_down(table, handle, context, place, 0);
	vgpu_unlock(&table->lock);
}

void vgpu_generation_part(CUcontext context)
{
	struct table *table = context ? enter() : NULL;
	struct handle *handle;

	if (!table)
		return;
	handle = entry_for(table, context);
	if (handle && handle->meaning)
		__atomic_store_n(&handle->meaning, 0, __ATOMIC_RELEASE);
	vgpu_unlock(&table->lock);
}
