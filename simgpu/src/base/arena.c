/*
 * The ranges in use are in a list by address. A tree finds the range at an address. A new range
 * gets the first large enough gap after the latest range, or in a `compact` arena the first of all.
 */
#define _GNU_SOURCE
#include "base/arena.h"

#include <search.h>
#include <sys/mman.h>

#define UNIT_BYTES (2ull << 20) /* unit of allocations larger than half a unit */

/* A range, and the bytes it occupies. The list is a circle that begins and ends at arena->ends. */
struct place {
	struct range range;
	uint64_t bytes;
	struct place *before, *after;
};

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) & ~(unit - 1);
}

/* Orders ranges by address. Overlapping ranges compare as equal. */
static int compare(const void *left, const void *right)
{
	const struct place *a = left, *b = right;

	if (a->range.base + a->bytes <= b->range.base)
		return -1;
	return b->range.base + b->bytes <= a->range.base;
}

void arena_begin(struct arena *arena, uint64_t base, uint64_t bytes, bool compact)
{
	struct place *ends = must(calloc(1, sizeof(*ends)));

	ends->range.base = base + bytes;
	ends->before = ends->after = ends;
	*arena = (struct arena){.base = base, .ends = ends, .latest = ends, .compact = compact};
}

bool arena_reserve(struct arena *arena, uint64_t bytes, bool low)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (low ? MAP_32BIT : 0);
	char *mapped;

	if (arena->base)
		return true;
	mapped = mmap(NULL, bytes + UNIT_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (mapped == MAP_FAILED)
		return false;
	/* A fork child has no driver, so it needs none of the pages. */
	madvise(mapped, bytes + UNIT_BYTES, MADV_DONTFORK);
	arena_begin(arena, round_up((uintptr_t)mapped, UNIT_BYTES), bytes, false);
	return true;
}

bool arena_holds(const struct arena *arena, uint64_t address)
{
	return arena->base && address >= arena->base && address < arena->ends->range.base;
}

/* Returns the first address, a multiple of `unit`, for a range after `place`. */
static uint64_t end_of(const struct arena *arena, const struct place *place, uint64_t unit)
{
	uint64_t end = place == arena->ends ? arena->base : place->range.base + place->bytes;

	return round_up(end, unit);
}

/* Returns the place before a gap of at least `bytes`, or NULL. */
static struct place *find_gap(struct arena *arena, uint64_t bytes, uint64_t unit)
{
	struct place *from = arena->compact ? arena->ends : arena->latest, *place = from;

	do {
		uint64_t base = end_of(arena, place, unit), end = place->after->range.base;

		if (base <= end && bytes <= end - base)
			return place;
		place = place->after;
	} while (place != from);
	return NULL;
}

struct range *arena_take(struct arena *arena, uint64_t bytes)
{
	uint64_t unit = !arena->compact && bytes > UNIT_BYTES / 2 ? UNIT_BYTES : SIM_GRANULE_BYTES;
	struct place *before = find_gap(arena, round_up(bytes, unit), unit);
	struct place *place;

	if (!before)
		return NULL;
	place = must(calloc(1, sizeof(*place)));
	place->range.base = end_of(arena, before, unit);
	place->range.bytes = bytes;
	place->bytes = round_up(bytes, unit);
	must(tsearch(place, &arena->tree, compare));
	place->before = before;
	place->after = before->after;
	before->after = place->after->before = place;
	arena->latest = place;
	return &place->range;
}

void arena_give(struct arena *arena, struct range *range)
{
	struct place *place = (struct place *)range;

	if (!arena->compact && place->bytes >= UNIT_BYTES)
		madvise((void *)(uintptr_t)range->base, place->bytes, MADV_DONTNEED);
	tdelete(place, &arena->tree, compare);
	place->before->after = place->after;
	place->after->before = place->before;
	if (arena->latest == place)
		arena->latest = place->before;
	free(place);
}

bool arena_cut(struct arena *arena, struct range *range, uint64_t bytes)
{
	struct place *place = (struct place *)range;

	bytes = round_up(bytes, SIM_GRANULE_BYTES);
	if (bytes >= place->bytes) {
		arena_give(arena, range);
		return true;
	}
	range->base += bytes;
	range->bytes = place->bytes -= bytes;
	return false;
}

struct range *arena_find(const struct arena *arena, uint64_t address)
{
	const struct place key = {.range.base = address, .bytes = 1};
	struct place *const *found = tfind(&key, &arena->tree, compare);

	return found && address - (*found)->range.base < (*found)->range.bytes ? &(*found)->range
									       : NULL;
}

bool arena_is_empty(const struct arena *arena)
{
	return arena->ends->after == arena->ends;
}

void arena_forget(struct arena *arena, uint64_t context)
{
	struct place *after;

	for (struct place *at = arena->base ? arena->ends->after : NULL; at && at != arena->ends;
	     at = after) {
		after = at->after;
		if (at->range.context == context)
			arena_give(arena, &at->range);
	}
}

void arena_end(struct arena *arena)
{
	while (!arena_is_empty(arena))
		arena_give(arena, &arena->ends->after->range);
	free(arena->ends);
}
