/*
 * Addresses for device memory: allocates from a reserved range of the process's address space.
 *
 * Independent of GPUs and contexts: the daemon has decided before what is allowed. The kernel
 * provides pages when they are first touched, so that copies really move data and memory that is
 * only allocated costs nothing. One mapping, whatever is allocated in it. The caller locks.
 */
#ifndef SIMGPU_ARENA_H
#define SIMGPU_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SIM_GRANULE_BYTES 512 /* alignment and rounding of cuMemAlloc */

/* What an allocator returned; a process without host memory ends. */
static inline void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

struct range {
	uint64_t base;
	uint64_t bytes;		    /* as requested; 0: not in use */
	uint64_t id;		    /* the daemon's */
	uint64_t context;	    /* serial of the context it belongs to; 0: none */
	struct graph_memory *graph; /* of a graph's allocation node */
	struct chunk *chunk;	    /* of a memory pool: what is allocated lies within */
	struct shared_block *block; /* small allocations of a context lie within; or it does */
	bool imported; /* cannot be freed: another process's, or a module's variables */
	bool managed;  /* addressed by host and device alike */
	bool leaving;  /* freed in a stream: leaving.h's */
};

struct chunk;
struct place;
struct shared_block;

struct arena {
	uint64_t base;	      /* 0: nothing reserved yet */
	struct place *ends;   /* before the first range, after the last */
	struct place *latest; /* after which the next one is placed */
	void *tree;
	bool compact;
};

/* Reserves addresses for `bytes`, below 2^31 if `low`. False: no address space. */
bool arena_reserve(struct arena *arena, uint64_t bytes, bool low);
/* The same in addresses that the caller has, filled from the beginning if `compact`. */
void arena_begin(struct arena *arena, uint64_t base, uint64_t bytes, bool compact);
bool arena_holds(const struct arena *arena, uint64_t address);
/* A range of `bytes` > 0, or NULL if no addresses are left. */
struct range *arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, struct range *range);
/* Gives back the range's beginning; true: that was all of it. */
bool arena_cut(struct arena *arena, struct range *range, uint64_t bytes);
/* The range in use that holds `address`, or NULL. */
struct range *arena_find(const struct arena *arena, uint64_t address);
bool arena_is_empty(const struct arena *arena);
/* Gives back the context's ranges. */
void arena_forget(struct arena *arena, uint64_t context);
/* Gives back all ranges; the addresses are the caller's. */
void arena_end(struct arena *arena);

#endif
