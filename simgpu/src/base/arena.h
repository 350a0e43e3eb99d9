/*
 * Addresses for device memory, allocated from a reserved range of the process's address space.
 *
 * Independent of GPUs and contexts: the daemon has already allowed each allocation. The kernel
 * provides pages when they are first touched. So copies really move data, and memory that is only
 * allocated costs nothing. An arena is one mapping. The caller holds the driver's lock.
 */
#ifndef SIMGPU_ARENA_H
#define SIMGPU_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SIM_GRANULE_BYTES 512 /* alignment and rounding of cuMemAlloc */

/* Returns `memory`, or aborts the process if it is NULL. */
static inline void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

struct range {
	uint64_t base;
	uint64_t bytes;		    /* as requested */
	uint64_t id;		    /* the daemon's id of the memory */
	uint64_t context;	    /* serial of the owning context; 0: none */
	struct graph_memory *graph; /* the graph memory with this range, or NULL */
	struct chunk *chunk;	    /* the pool's chunk that is or has this range, or NULL */
	struct shared_block *block; /* the shared block that is or has this range, or NULL */
	bool imported; /* not to be freed by the program: imported, or a module's variables */
	bool managed;  /* has the same address on host and device */
	bool leaving;  /* freed in a stream, but still allocated (leaving.h) */
};

struct chunk;
struct place;
struct shared_block;

struct arena {
	uint64_t base;	      /* 0: no addresses are reserved yet */
	struct place *ends;   /* the list's head: before the first range and after the last */
	struct place *latest; /* where the search for the next gap begins */
	void *tree;
	bool compact;
};

/* Reserves addresses for `bytes`, below 2^31 if `low`. Returns false if there are none. */
bool arena_reserve(struct arena *arena, uint64_t bytes, bool low);
/* Uses reserved addresses of the caller. A `compact` arena is filled from its beginning. */
void arena_begin(struct arena *arena, uint64_t base, uint64_t bytes, bool compact);
bool arena_holds(const struct arena *arena, uint64_t address);
/* Allocates a range of `bytes` > 0. Returns NULL if no addresses are left. */
struct range *arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, struct range *range);
/* Frees the first `bytes` of the range. Returns true if that was all of it. */
bool arena_cut(struct arena *arena, struct range *range, uint64_t bytes);
/* Returns the range in use that contains `address`, or NULL. */
struct range *arena_find(const struct arena *arena, uint64_t address);
bool arena_is_empty(const struct arena *arena);
/* Frees the ranges of the context with that serial. */
void arena_forget(struct arena *arena, uint64_t context);
/* Frees all ranges. The caller keeps the addresses. */
void arena_end(struct arena *arena);

#endif
