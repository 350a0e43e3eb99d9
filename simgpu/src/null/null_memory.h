/*
 * The null driver's memory: numbers for addresses, allocated as a GPU does.
 *
 * Allocations of up to half a block share blocks of 2 MiB, at multiples of 512 bytes. A larger
 * allocation gets whole blocks. An operation costs the same with one allocation or two million. A
 * pool takes pieces of 32 MiB, and keeps freed memory until it is trimmed.
 */
#ifndef SIMGPU_NULL_MEMORY_H
#define SIMGPU_NULL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NULL_BLOCK_BYTES (UINT64_C(2) << 20)

enum null_heap { NULL_HEAP_DEVICE, NULL_HEAP_POOL, NULL_HEAP_COUNT };

/* Makes empty memory of that size, before any use. Returns false if its tables get no memory. */
bool null_memory_begin(uint64_t total_bytes);

/* Returns an address, or 0 if the size does not fit or there are too many allocations. */
uint64_t null_memory_take(enum null_heap heap, uint64_t bytes);

/* Returns false if no allocation has that address. */
bool null_memory_give(uint64_t address);

uint64_t null_memory_used_bytes(void);

/* Returns how many bytes of the GPU the pool has reserved. */
uint64_t null_pool_reserved_bytes(void);

/* Returns the pool's unused bytes to the GPU, but keeps at least keep_bytes. */
void null_pool_trim(uint64_t keep_bytes);

#endif
