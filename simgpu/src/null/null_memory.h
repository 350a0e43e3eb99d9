/*
 * The null driver's memory: numbers for addresses, allocated as a GPU does.
 *
 * An allocation of up to half a block lies in a 2 MiB block, aligned to 512 bytes; a larger one
 * gets whole blocks of its own. Every operation costs the same with one allocation or two million.
 * A pool keeps freed memory until it is trimmed, in pieces of 32 MiB.
 */
#ifndef SIMGPU_NULL_MEMORY_H
#define SIMGPU_NULL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NULL_BLOCK_BYTES (UINT64_C(2) << 20)

enum null_heap { NULL_HEAP_DEVICE, NULL_HEAP_POOL, NULL_HEAP_COUNT };

/* Empty memory of that size; false if there is no memory for the tables. Called before any use. */
bool null_memory_begin(uint64_t total_bytes);

/* The address, or 0: it does not fit, or there are too many allocations. */
uint64_t null_memory_take(enum null_heap heap, uint64_t bytes);

/* false: no allocation has that address. */
bool null_memory_give(uint64_t address);

uint64_t null_memory_used_bytes(void);

/* The pool's memory of the GPU. */
uint64_t null_pool_reserved_bytes(void);

/* Releases what the pool holds unused, down to at least keep_bytes. */
void null_pool_trim(uint64_t keep_bytes);

#endif
