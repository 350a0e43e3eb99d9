/*
 * Memory pools: reserved from the GPU in chunks, and allocated in pieces.
 *
 * A pool keeps freed memory, so that the GPU allocates chunks (32 MiB, or what one larger
 * allocation needs) and gets back whole chunks, when nothing in them is in use: at a
 * synchronisation, above the pool's release threshold, or when it is trimmed. A piece freed in a
 * stream is free once the stream reaches the free. No function calls the daemon, except
 * chunks_give_back, which runs without the lock.
 */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "base/driver.h"

#define CHUNK_BYTES (32ull << 20)
#define BLOCK_BYTES (2ull << 20)

struct chunk;

struct pool {
	struct object object;
	struct device *device;
	struct chunk *chunks;
	bool is_default, imported, destroyed;
	int reuse[3]; /* by attribute; stored and without effect */
	int handle_types;
	uint64_t threshold_bytes, max_bytes; /* 0: no maximum */
	uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes;
	uint64_t origin; /* imported: distinguishes the exporter's pool from others */
};

/* A piece of `bytes` for work in `stream` (its serial), or 0 if no chunk has space. */
uint64_t pool_take(struct pool *pool, uint64_t bytes, uint64_t stream);
/* Adds a chunk that the daemon granted as `id`; false if there is no address space. */
bool pool_grow(struct pool *pool, uint64_t bytes, uint64_t id);
/* A piece at that place of the chunk that was added last: another process's. */
uint64_t pool_take_at(struct pool *pool, uint64_t offset, uint64_t bytes);
/* The size of the chunk that an allocation needs if none has space. */
uint64_t pool_growth_bytes(uint64_t bytes);

/* The allocation at `address`, with its requested size, or NULL. */
struct range *chunk_find(struct chunk *chunk, uint64_t address);
/* An address's offset in its chunk, the chunk's size, and the daemon's id of it. */
uint64_t chunk_place(const struct chunk *chunk, uint64_t address, uint64_t *offset,
		     uint64_t *bytes);
struct pool *chunk_pool(struct chunk *chunk);
/* Frees the allocation that begins at `address` once `ready` is reached. */
void chunk_free(struct chunk *chunk, uint64_t address, uint64_t stream, const struct mark *ready);

/* Takes unused chunks out of a pool and adds them to `gone`, as long as it keeps `keep_bytes`. */
void pool_trim(struct pool *pool, uint64_t keep_bytes, struct chunk **gone);
/* Without the lock: their memory is the GPU's again. */
void chunks_give_back(struct chunk *gone);

/* Without the lock: what a synchronisation does beside waiting; true if the GPU still answers. */
CUresult pools_synchronised(struct device *device);
/* Frees the device's pools and all that is in them. Called with the lock; the list as above. */
void pools_forget(struct device *device, struct chunk **gone);

/* A new pool in device memory with everything at its default. */
struct pool *pool_new(struct device *device);
struct pool *pool_default(struct device *device);
/* The pool, after driver_enter; if it fails, driver_leave has been called. */
CUresult pool_enter(CUmemoryPool handle, struct pool **pool);

#endif
