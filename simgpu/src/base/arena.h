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

#define SIM_GRANULE_BYTES 512 /* alignment and rounding of cuMemAlloc */

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

struct arena_block;
struct chunk;
struct shared_block;

struct arena {
	uint64_t base; /* 0: nothing reserved yet */
	uint32_t blocks, next;
	struct arena_block *block;
	uint32_t open[12]; /* per size class: first block with a free slot, + 1 */
};

/* Reserves addresses for at least `bytes`, below 2^31 if `low`. False: no address space. */
bool arena_reserve(struct arena *arena, uint64_t bytes, bool low);
/* A range of `bytes` > 0, or NULL if no addresses are left. */
struct range *arena_take(struct arena *arena, uint64_t bytes);
void arena_give(struct arena *arena, struct range *range);
/* The range in use that holds `address`, or NULL. */
struct range *arena_find(const struct arena *arena, uint64_t address);
/* The first range at or after `*at` (0 to begin) that belongs to the context; NULL at the end. */
struct range *arena_next(const struct arena *arena, uint64_t context, uint64_t *at);

#endif
