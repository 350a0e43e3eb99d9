/*
 * Handles: a table of existing objects, addressed by kind, index and generation.
 *
 * A freed slot gets a new generation, so an old handle stays invalid until its number repeats. The
 * caller holds the driver's lock.
 */
#include "base/driver.h"

#include <stdlib.h>

#define INDEX_BITS	24
#define GENERATION_BITS 28

struct slot {
	struct object *object;
	uint32_t generation;
	uint32_t next_free; /* index + 1; 0: the end of the list */
};

static struct slot *slots;
static uint32_t slots_used, first_free;
static uint64_t last_serial;

static uint32_t slot_take(void)
{
	uint32_t index = first_free - 1;

	if (first_free) {
		first_free = slots[index].next_free;
		return index;
	}
	if (slots_used >> INDEX_BITS)
		abort();
	slots = grow(slots, slots_used, sizeof(*slots));
	slots[slots_used] = (struct slot){.generation = 1};
	return slots_used++;
}

void *object_new(enum object_kind kind, size_t bytes)
{
	struct object *object = must(calloc(1, bytes));
	uint32_t index = slot_take();

	*object = (struct object){kind, index, slots[index].generation, ++last_serial};
	slots[index].object = object;
	return object;
}

/* A handle looks like an aligned address, but is none. Programs only compare handles and pass them
 * back. */
void *object_handle(const void *object)
{
	const struct object *named = object;
	uint64_t value = named->kind;

	value = value << GENERATION_BITS | named->generation;
	value = value << INDEX_BITS | named->index;
	return (void *)(uintptr_t)(value << 4);
}

void *object_get(const void *handle, enum object_kind kind)
{
	uint64_t value = (uint64_t)(uintptr_t)handle;
	uint32_t index = (uint32_t)(value >> 4) & ((1u << INDEX_BITS) - 1);
	struct object *object = index < slots_used ? slots[index].object : NULL;

	if (!object || object->kind != kind || object_handle(object) != handle)
		return NULL;
	return object;
}

bool object_was(const void *handle, enum object_kind kind)
{
	uint64_t value = (uint64_t)(uintptr_t)handle >> 4;

	return value >> (GENERATION_BITS + INDEX_BITS) == kind &&
	       (value & ((1u << INDEX_BITS) - 1)) < slots_used;
}

void object_unlink(void *object)
{
	struct object *named = object;
	struct slot *slot = &slots[named->index];

	slot->object = NULL;
	slot->generation = (slot->generation + 1) & ((1u << GENERATION_BITS) - 1);
	slot->next_free = first_free;
	first_free = named->index + 1;
}

void object_free(void *object)
{
	object_unlink(object);
	free(object);
}

void *object_next(enum object_kind kind, uint32_t *at)
{
	while (*at < slots_used) {
		struct object *object = slots[(*at)++].object;

		if (object && object->kind == kind)
			return object;
	}
	return NULL;
}
