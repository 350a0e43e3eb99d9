/*
 * Memory pools: reserved from the GPU in chunks, and allocated in pieces.
 *
 * A pool keeps freed memory. It takes whole chunks from the GPU (32 MiB, or the size of a larger
 * allocation). An unused chunk is returned at a synchronisation if the pool exceeds its
 * release threshold, or when the pool is trimmed. A piece that is freed in a stream is free once
 * the stream reaches the free operation. Only chunks_give_back calls the daemon, and runs without
 * the lock.
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
	int reuse[3]; /* values of three attributes, stored without effect */
	int handle_types;
	uint64_t threshold_bytes, max_bytes; /* 0: no maximum */
	uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes;
	uint64_t origin; /* number of an exported pool and its imports */
};

/* Takes a piece for work in the stream with that serial. Returns 0 if no chunk has space. */
uint64_t pool_take(struct pool *pool, uint64_t bytes, uint64_t stream);
/* Adds a chunk that the daemon granted as `id`. Returns false if no addresses are left. */
bool pool_grow(struct pool *pool, uint64_t bytes, uint64_t id);
/* Takes another process's piece, at its offset in the chunk that was added last. */
uint64_t pool_take_at(struct pool *pool, uint64_t offset, uint64_t bytes);
/* Returns the size of a new chunk for an allocation that fits in no existing chunk. */
uint64_t pool_growth_bytes(uint64_t bytes);

/* Returns the allocation that contains `address`, with its requested size, or NULL. */
struct range *chunk_find(struct chunk *chunk, uint64_t address);
/* Stores the offset in the chunk and the chunk's size. Returns the daemon's id of the chunk. */
uint64_t chunk_place(const struct chunk *chunk, uint64_t address, uint64_t *offset,
		     uint64_t *bytes);
struct pool *chunk_pool(struct chunk *chunk);
/* Frees the allocation that begins at `address` once `ready` is reached. */
void chunk_free(struct chunk *chunk, uint64_t address, uint64_t stream, const struct mark *ready);

/* Moves unused chunks to `gone`, as long as the pool keeps `keep_bytes`. */
void pool_trim(struct pool *pool, uint64_t keep_bytes, struct chunk **gone);
/* Returns the chunks to the GPU. Called without the lock. */
void chunks_give_back(struct chunk *gone);

/* Completes a synchronisation after its wait, without the lock. It fails if the GPU is lost. */
CUresult pools_synchronised(struct device *device);
/* Frees the device's pools and their content. Adds the chunks to `gone`. Called with the lock. */
void pools_forget(struct device *device, struct chunk **gone);

/* Makes a pool in device memory with default attributes. */
struct pool *pool_new(struct device *device);
struct pool *pool_default(struct device *device);
/* Calls driver_enter and finds the pool. Calls driver_leave if that fails. */
CUresult pool_enter(CUmemoryPool handle, struct pool **pool);

#endif
