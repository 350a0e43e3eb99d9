/*
 * Shards of open addressing with linear probing, each behind a lock of its own; an entry taken out
 * leaves no tombstone (those behind it move up), so that a ledger that lives long stays fast.
 *
 * All of it lies in anonymous pages that the kernel wipes in a fork child (MADV_WIPEONFORK; raw
 * clone too): there the pages read zero, which is an empty ledger with free locks. Kernels
 * before 4.14 lack that; there the owner's process id is compared instead.
 */
#include "ledger.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lock.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { SHARD_BITS = 6, SHARD_COUNT = 1 << SHARD_BITS, FIRST_CAPACITY = 64 };

struct entry {
	uint64_t address; /* 0: free */
	uint64_t bytes;
	int32_t card;
};

struct shard {
	struct vgpu_lock lock;
	uint32_t count;
	uint64_t capacity; /* power of two, or 0 */
	struct entry *entries;
} __attribute__((aligned(64)));

struct ledger {
	struct shard shards[SHARD_COUNT];
	pid_t owner; /* 0: the kernel wipes */
};

static struct ledger *the_ledger;

static void *map_pages(uint64_t bytes, bool *wiped)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		return NULL;
	*wiped = madvise(pages, bytes, MADV_WIPEONFORK) == 0;
	return pages;
}

/* NULL where there is no memory for it. */
static struct ledger *get_ledger(void)
{
	struct ledger *ledger = __atomic_load_n(&the_ledger, __ATOMIC_ACQUIRE);
	struct ledger *fresh;
	bool wiped;

	if (ledger && (!ledger->owner || ledger->owner == getpid()))
		return ledger;
	fresh = map_pages(sizeof(*fresh), &wiped);
	if (!fresh)
		return NULL;
	fresh->owner = wiped ? 0 : getpid();
	if (__atomic_compare_exchange_n(&the_ledger, &ledger, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	munmap(fresh, sizeof(*fresh)); /* another thread was first */
	return ledger;
}

/* Driver addresses differ in their middle bits; multiplying spreads them to the top. */
static uint64_t spread(uint64_t address)
{
	return address * UINT64_C(0x9e3779b97f4a7c15);
}

static struct shard *shard_of(struct ledger *ledger, uint64_t address)
{
	return &ledger->shards[spread(address) >> (64 - SHARD_BITS)];
}

static uint64_t home_of(const struct shard *shard, uint64_t address)
{
	return spread(address) << SHARD_BITS >> (64 - __builtin_ctzll(shard->capacity));
}

/* The address's entry, or the free one where it belongs. The table has a free one. */
static struct entry *find(const struct shard *shard, uint64_t address)
{
	uint64_t at = home_of(shard, address);

	while (shard->entries[at].address && shard->entries[at].address != address)
		at = (at + 1) & (shard->capacity - 1);
	return &shard->entries[at];
}

/* Make room for one more; the old table stays as it is until the new one is complete. */
static bool grow(struct shard *shard)
{
	struct shard larger = *shard;
	bool wiped;

	if (shard->capacity && shard->count < shard->capacity / 4 * 3)
		return true;
	larger.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY;
	larger.entries = map_pages(larger.capacity * sizeof(struct entry), &wiped);
	if (!larger.entries)
		return shard->capacity && shard->count + 1 < shard->capacity;
	for (uint64_t i = 0; i < shard->capacity; i++)
		if (shard->entries[i].address)
			*find(&larger, shard->entries[i].address) = shard->entries[i];
	if (shard->entries)
		munmap(shard->entries, shard->capacity * sizeof(struct entry));
	shard->entries = larger.entries;
	shard->capacity = larger.capacity;
	return true;
}

enum vgpu_ledger_put vgpu_ledger_put(uint64_t address, struct vgpu_charge charge,
				     struct vgpu_charge *replaced)
{
	struct ledger *ledger = get_ledger();
	enum vgpu_ledger_put result = VGPU_LEDGER_NO_MEMORY;

	if (!ledger)
		return result;
	struct shard *shard = shard_of(ledger, address);
	vgpu_lock(&shard->lock);
	if (grow(shard)) {
		struct entry *entry = find(shard, address);
		result = entry->address ? VGPU_LEDGER_REPLACED : VGPU_LEDGER_ADDED;
		*replaced = (struct vgpu_charge){.bytes = entry->bytes, .card = entry->card};
		shard->count += !entry->address;
		*entry = (struct entry){address, charge.bytes, charge.card};
	}
	vgpu_unlock(&shard->lock);
	return result;
}

/* Close the gap: every entry behind it that may not be reached across a free place moves up. */
static void remove_entry(struct shard *shard, struct entry *entry)
{
	uint64_t mask = shard->capacity - 1;
	uint64_t gap = (uint64_t)(entry - shard->entries);

	for (uint64_t at = (gap + 1) & mask; shard->entries[at].address; at = (at + 1) & mask) {
		uint64_t home = home_of(shard, shard->entries[at].address);
		if (((at - home) & mask) >= ((at - gap) & mask)) {
			shard->entries[gap] = shard->entries[at];
			gap = at;
		}
	}
	memset(&shard->entries[gap], 0, sizeof(struct entry));
	shard->count--;
}

bool vgpu_ledger_take(uint64_t address, struct vgpu_charge *charge)
{
	struct ledger *ledger = __atomic_load_n(&the_ledger, __ATOMIC_ACQUIRE);
	bool known = false;

	if (!ledger || !address || (ledger->owner && ledger->owner != getpid()))
		return false;
	struct shard *shard = shard_of(ledger, address);
	vgpu_lock(&shard->lock);
	if (shard->capacity) {
		struct entry *entry = find(shard, address);
		known = entry->address != 0;
		*charge = (struct vgpu_charge){.bytes = entry->bytes, .card = entry->card};
		if (known)
			remove_entry(shard, entry);
	}
	vgpu_unlock(&shard->lock);
	return known;
}

uint64_t vgpu_ledger_count(void)
{
	struct ledger *ledger = __atomic_load_n(&the_ledger, __ATOMIC_ACQUIRE);
	uint64_t count = 0;

	for (int i = 0; ledger && i < SHARD_COUNT; i++)
		count += __atomic_load_n(&ledger->shards[i].count, __ATOMIC_RELAXED);
	return count;
}
