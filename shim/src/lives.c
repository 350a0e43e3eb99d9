/*
 * See lives.h. A table of handles: each has WAYS places that it may stand in, and a word beside it
 * that says what it means. That word is unique (a life's number is given once) and 0 while the
 * handle changes, so a reader takes no lock: the same word before and after the handle was read
 * vouches for it. Writers take one.
 *
 * Where WAYS living contexts fill a handle's places, it gets the number 0: what it holds stays
 * charged until it is freed or the process ends.
 */
#include "lives.h"

#include <stddef.h>

#include "lock.h"
#include "wiped.h"

enum { HANDLE_BITS = 10, HANDLES = 1 << HANDLE_BITS, WAYS = 16 };

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
	bool numberless;	 /* some context had no place left */
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

bool vgpu_lives_known(CUcontext context, struct vgpu_place *place)
{
	struct table *table = get_table();

	for (unsigned int i = 0; table && i < WAYS; i++) {
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

void vgpu_lives_begin(CUcontext context, struct vgpu_place *place)
{
	struct table *table = get_table();
	struct handle *handle;

	if (!table)
		return;
	if (!vgpu_lock(&table->lock))
		return;
	handle = place_for(table, context);
	if (handle && handle->meaning) {
		place->context = (uint32_t)(handle->meaning >> 32);
	} else if (handle) {
		table->lives += 1 + (table->lives == UINT32_MAX);
		place->context = table->lives;
		write_down(table, handle, context, meaning_of(*place));
	} else {
		__atomic_store_n(&table->numberless, true, __ATOMIC_RELAXED);
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
	if (!vgpu_lock(&table->lock))
		return life;
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
	if (!vgpu_lock(&table->lock))
		return;
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
	if (!vgpu_lock(&table->lock))
		return;
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
	if (!vgpu_lock(&table->lock))
		return true;
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
	if (!vgpu_lock(&table->lock))
		return;
	handle = place_for(table, context);
	if (handle)
		write_down(table, handle, context, meaning_of(place));
	else
		__atomic_store_n(&table->numberless, true, __ATOMIC_RELAXED);
	vgpu_unlock(&table->lock);
}

void vgpu_place_forget(uint32_t life)
{
	struct table *table = get_table();

	if (!table || !life)
		return;
	if (!vgpu_lock(&table->lock))
		return;
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
	if (!vgpu_lock(&table->lock))
		return NULL;
	for (int i = 0; i < HANDLES && !found; i++)
		if (table->handles[i].meaning && (int)(uint32_t)table->handles[i].meaning == card)
			found = table->handles[i].context;
	vgpu_unlock(&table->lock);
	return found;
}

CUcontext vgpu_place_context_of(uint32_t life)
{
	struct table *table = get_table();
	CUcontext found = NULL;

	if (!table || !life)
		return NULL;
	if (!vgpu_lock(&table->lock))
		return NULL;
	for (int i = 0; i < HANDLES && !found; i++)
		if (table->handles[i].meaning >> 32 == life)
			found = table->handles[i].context;
	vgpu_unlock(&table->lock);
	return found;
}

bool vgpu_place_alone(struct vgpu_place place)
{
	struct table *table = get_table();
	bool alone;

	if (!table || __atomic_load_n(&table->numberless, __ATOMIC_RELAXED))
		return false;
	if (!vgpu_lock(&table->lock))
		return false;
	alone = true;
	for (int i = 0; i < HANDLES && alone; i++) {
		uint64_t meaning = table->handles[i].meaning;
		alone = !meaning || (int)(uint32_t)meaning != place.card ||
			meaning >> 32 == place.context;
	}
	vgpu_unlock(&table->lock);
	return alone;
}

bool vgpu_place_none_on(int card)
{
	struct table *table = get_table();

	return table && !__atomic_load_n(&table->numberless, __ATOMIC_RELAXED) &&
	       !vgpu_place_context_on(card);
}
