/*
 * The table of claims: what each number stands for, and how claims hang together. For claims*.c
 * alone.
 *
 * Claims hang in one hash table by kind and key; those of a list, kept or taken, hang on each other
 * and are in no one else's sight. What has to look at all claims (a handle that was retained by
 * address, an unbinding, an array that goes) is rare. Wherever nothing else is said the caller
 * holds the table's lock, and nobody holds it while a charge is refunded.
 */
#ifndef VGPU_CLAIM_TABLE_H
#define VGPU_CLAIM_TABLE_H

#include "claims.h"
#include "lock.h"
#include "wiped.h"

enum { VGPU_CLAIM_BUCKET_BITS = 14, VGPU_CLAIM_BUCKETS = 1 << VGPU_CLAIM_BUCKET_BITS };

struct vgpu_claim {
	uint64_t key, extent, owner;
	uint32_t next;	 /* in the bucket, in a list, or among the free */
	uint32_t memory; /* 0: free */
	uint8_t kind;
	bool hangs; /* in its bucket */
};

struct vgpu_claimed {
	struct vgpu_reservation charge;
	uint32_t claims; /* 0: free */
	uint32_t next_free;
	CUdevice device;
};

/* Numbers begin at 1. `used`: numbers given so far. */
struct vgpu_claim_table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;
	uint32_t claims_used, claims_free, memories_used, memories_free;
	uint32_t kinds[VGPU_CLAIM_KINDS]; /* how many hang in the table */
	uint32_t bucket[VGPU_CLAIM_BUCKETS];
	struct vgpu_claim claim[VGPU_CLAIMS];
	struct vgpu_claimed memory[VGPU_CLAIMS];
};

/* The table, and the same where nothing need be made for it: NULL where nothing was ever claimed.
 * Without the lock. */
struct vgpu_claim_table *vgpu_claim_table(void);
struct vgpu_claim_table *vgpu_claim_table_if_any(void);

/* A number that is free; 0: none. A claim's counts as one to its memory from here on. */
uint32_t vgpu_claim_number(struct vgpu_claim_table *table, uint32_t memory);
uint32_t vgpu_claimed_number(struct vgpu_claim_table *table);
void vgpu_claimed_free(struct vgpu_claim_table *table, uint32_t memory);

/* Into its bucket; and out of it, at the head of a list: the claim that `*link` leads to. */
void vgpu_claim_hang(struct vgpu_claim_table *table, uint32_t number);
void vgpu_claim_unhang(struct vgpu_claim_table *table, uint32_t *link, uint32_t *list);

/* What leads to a claim of that kind and key; it leads to 0 where there is none. */
uint32_t *vgpu_claim_find(struct vgpu_claim_table *table, enum vgpu_claim_kind kind, uint64_t key);

struct vgpu_chosen {
	enum vgpu_claim_kind kind;
	bool (*is)(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		   const struct vgpu_chosen *wanted);
	uint64_t key, extent, owner;
	CUdevice device;
};

/* Takes out, as a list, all claims of a kind that `is` says so of. Without the lock. */
uint32_t vgpu_take_chosen(struct vgpu_chosen wanted);

/* Drops a list, one at a time. Without the lock, so that nobody waits for the region under it. */
void vgpu_claims_drop(struct vgpu_claim_table *table, uint32_t list);

#endif
