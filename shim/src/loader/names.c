#include "loader/names.h"

#include <stddef.h>

#include "os/text.h"

static uint32_t hash_of(const char *name)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return hash ^ hash >> 15;
}

static void put(const struct vgpu_names *names, int number)
{
	uint32_t slot = hash_of(names->name_of(number));
	uint16_t taken, *at;

	do {
		at = &names->slots[slot++ & (names->slot_count - 1)];
		taken = __atomic_load_n(at, __ATOMIC_RELAXED);
	} while (taken && taken != number + 1);
	__atomic_store_n(at, (uint16_t)(number + 1), __ATOMIC_RELAXED);
}

uint32_t vgpu_names_start(struct vgpu_names *names, const char *name)
{
	if (!__atomic_load_n(&names->filled, __ATOMIC_ACQUIRE)) {
		for (int number = 0; number < names->count; number++)
			put(names, number);
		__atomic_store_n(&names->filled, 1, __ATOMIC_RELEASE);
	}
	return hash_of(name);
}

int vgpu_names_next(const struct vgpu_names *names, const char *name, uint32_t *slot)
{
	uint16_t taken;

	while ((taken = __atomic_load_n(&names->slots[*slot & (names->slot_count - 1)],
					__ATOMIC_RELAXED))) {
		++*slot;
		if (vgpu_text_same(names->name_of(taken - 1), name))
			return taken - 1;
	}
	return -1;
}
