/*
 * The ledger's table. ledger.c keeps one charge per key in it. blocks.c keeps one block of device
 * memory per key, which many allocations share.
 *
 * The table consists of shards with one lock each. A shard uses open addressing with linear
 * probing. When an entry is removed, later entries move up. So searches stay short in a process
 * that runs for long.
 */
#pragma once

#include "ledger/charge.h"
#include "os/lock.h"
#include "vgpu/contract.h"

/* One bit for each unit of a block: set if an allocation begins there. */
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
		uint16_t live; /* VGPU_KIND_BLOCK: number of its allocations */
	};
	uint8_t gpu;
	uint8_t kind; /* 0: free */
};

struct vgpu_shard {
	struct vgpu_lock lock;
	uint32_t count;	   /* number of entries; also read without the lock */
	uint64_t capacity; /* a power of two, or 0 */
	struct vgpu_entry *entries;
	struct vgpu_bits *spare; /* list of free bits, all zero but the links in the first words */
} __attribute__((aligned(64)));

/* The key's shard, locked. NULL: the shard is empty and `make` is false, or no lock or memory is
 * available. */
struct vgpu_shard *vgpu_shard_enter(enum vgpu_kind kind, uint64_t key, bool make);
/* The shard of that number, locked. NULL: there is no such shard, or no table, or the lock is not
 * available. */
struct vgpu_shard *vgpu_shard_number(unsigned int number);
static inline void vgpu_shard_leave(struct vgpu_shard *shard)
{
	vgpu_unlock(&shard->lock);
}

/* Make space for one more entry. False: no memory. */
bool vgpu_shard_grow(struct vgpu_shard *shard);

/* The key's entry, or else a free one for the key. NULL: the shard has no entries allocated yet. */
struct vgpu_entry *vgpu_shard_find(const struct vgpu_shard *shard, enum vgpu_kind kind,
				   uint64_t key);

static inline void vgpu_shard_set(struct vgpu_shard *shard, struct vgpu_entry *at,
				  struct vgpu_entry entry)
{
	__atomic_store_n(&shard->count, shard->count + !at->kind, __ATOMIC_RELAXED);
	*at = entry;
}

void vgpu_shard_remove(struct vgpu_shard *shard, struct vgpu_entry *entry);

/* A pointer to the count of a GPU's blocks in the ledger. */
uint32_t *vgpu_ledger_blocks(int gpu);

/* Release the bits of a block. The caller then removes its entry. */
void vgpu_block_clear(struct vgpu_shard *shard, struct vgpu_entry *entry);
