/*
 * The ledger's table, for the files that keep entries in it: ledger.c (one key, one charge) and
 * blocks.c (one key, one block of device memory that many allocations share).
 *
 * Shards of open addressing with linear probing, each with its own lock; a removed entry leaves no
 * tombstone (those behind it move up), so that the ledger stays fast in a long process.
 */
#pragma once

#include "ledger/charge.h"
#include "os/lock.h"
#include "vgpu/contract.h"

/* A bit for each unit of a block that an allocation begins at. */
struct vgpu_bits {
	uint64_t words[64];
};

struct vgpu_entry {
	uint64_t key;
	union {
		uint64_t bytes;
		struct vgpu_bits *bits; /* VGPU_KIND_BLOCK */
	};
	uint32_t context;
	union {
		uint16_t hold; /* as in vgpu_charge */
		uint16_t live; /* VGPU_KIND_BLOCK: allocations in it */
	};
	uint8_t gpu;
	uint8_t kind; /* 0: free */
};

struct vgpu_shard {
	struct vgpu_lock lock;
	uint32_t count;	   /* also read without the lock */
	uint64_t capacity; /* power of two, or 0 */
	struct vgpu_entry *entries;
	struct vgpu_bits *spare; /* a list of zeroed ones, by their first words */
} __attribute__((aligned(64)));

/* The shard of a key, locked; NULL if there is none, and none can or may be made. */
struct vgpu_shard *vgpu_shard_enter(enum vgpu_kind kind, uint64_t key, bool make);
/* The shard of that number, locked; NULL after the last one, and if nothing was entered. */
struct vgpu_shard *vgpu_shard_number(unsigned int number);
static inline void vgpu_shard_leave(struct vgpu_shard *shard)
{
	vgpu_unlock(&shard->lock);
}

/* Make space for one more entry; false: no memory. */
bool vgpu_shard_grow(struct vgpu_shard *shard);

/* The key's entry, or the free one for it; NULL in a shard that never had space. */
struct vgpu_entry *vgpu_shard_find(const struct vgpu_shard *shard, enum vgpu_kind kind,
				   uint64_t key);

static inline void vgpu_shard_set(struct vgpu_shard *shard, struct vgpu_entry *at,
				  struct vgpu_entry entry)
{
	__atomic_store_n(&shard->count, shard->count + !at->kind, __ATOMIC_RELAXED);
	*at = entry;
}

void vgpu_shard_remove(struct vgpu_shard *shard, struct vgpu_entry *entry);

/* Number of blocks entered for a GPU. */
uint32_t *vgpu_ledger_blocks(int gpu);

/* Release a block's bits; the entry is about to be removed. */
void vgpu_block_clear(struct vgpu_shard *shard, struct vgpu_entry *entry);
