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
	uint64_t key;
	uint64_t bytes;
	uint32_t context;
	uint8_t card;
	uint8_t kind; /* 0: free */
	uint16_t hold;
};

_Static_assert(VGPU_MAX_SLOTS < UINT16_MAX, "a hold fits");

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

/* Addresses differ in their middle bits; multiplying spreads them to the top. */
static uint64_t spread(enum vgpu_kind kind, uint64_t key)
{
	return (key + ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct shard *shard_of(struct ledger *ledger, enum vgpu_kind kind, uint64_t key)
{
	return &ledger->shards[spread(kind, key) >> (64 - SHARD_BITS)];
}

static uint64_t home_of(const struct shard *shard, enum vgpu_kind kind, uint64_t key)
{
	return spread(kind, key) << SHARD_BITS >> (64 - __builtin_ctzll(shard->capacity));
}

/* The key's entry, or the free one where it belongs. The table has a free one. */
static struct entry *find(const struct shard *shard, enum vgpu_kind kind, uint64_t key)
{
	uint64_t at = home_of(shard, kind, key);

	while (shard->entries[at].kind &&
	       (shard->entries[at].key != key || shard->entries[at].kind != kind))
		at = (at + 1) & (shard->capacity - 1);
	return &shard->entries[at];
}

static struct vgpu_charge charge_in(const struct entry *entry)
{
	return (struct vgpu_charge){entry->bytes, entry->card, entry->context, entry->hold};
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
		if (shard->entries[i].kind)
			*find(&larger, shard->entries[i].kind, shard->entries[i].key) =
			    shard->entries[i];
	if (shard->entries)
		munmap(shard->entries, shard->capacity * sizeof(struct entry));
	shard->entries = larger.entries;
	shard->capacity = larger.capacity;
	return true;
}

/* Close the gap: every entry behind it that may not be reached across a free place moves up. */
static void remove_entry(struct shard *shard, struct entry *entry)
{
	uint64_t mask = shard->capacity - 1;
	uint64_t gap = (uint64_t)(entry - shard->entries);

	for (uint64_t at = (gap + 1) & mask; shard->entries[at].kind; at = (at + 1) & mask) {
		uint64_t home = home_of(shard, shard->entries[at].kind, shard->entries[at].key);
		if (((at - home) & mask) >= ((at - gap) & mask)) {
			shard->entries[gap] = shard->entries[at];
			gap = at;
		}
	}
	memset(&shard->entries[gap], 0, sizeof(struct entry));
	shard->count--;
}

static void enter(struct shard *shard, struct entry *entry, enum vgpu_kind kind, uint64_t key,
		  struct vgpu_charge charge)
{
	shard->count += !entry->kind;
	*entry = (struct entry){.key = key,
				.bytes = charge.bytes,
				.context = charge.context,
				.card = (uint8_t)charge.card,
				.hold = (uint16_t)charge.hold,
				.kind = (uint8_t)kind};
}

enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced)
{
	struct ledger *ledger = get_ledger();
	enum vgpu_ledger_put result = VGPU_LEDGER_NO_MEMORY;

	if (!ledger)
		return result;
	struct shard *shard = shard_of(ledger, kind, key);
	vgpu_lock(&shard->lock);
	if (grow(shard)) {
		struct entry *entry = find(shard, kind, key);
		result = entry->kind ? VGPU_LEDGER_REPLACED : VGPU_LEDGER_ADDED;
		*replaced = charge_in(entry);
		enter(shard, entry, kind, key, charge);
	}
	vgpu_unlock(&shard->lock);
	return result;
}

/* The ledger, if this process has entered anything. */
static struct ledger *own_ledger(void)
{
	struct ledger *ledger = __atomic_load_n(&the_ledger, __ATOMIC_ACQUIRE);

	return ledger && (!ledger->owner || ledger->owner == getpid()) ? ledger : NULL;
}

bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge)
{
	struct ledger *ledger = own_ledger();
	bool known = false;

	if (!ledger)
		return false;
	struct shard *shard = shard_of(ledger, kind, key);
	vgpu_lock(&shard->lock);
	if (shard->capacity) {
		struct entry *entry = find(shard, kind, key);
		known = entry->kind != 0;
		*charge = charge_in(entry);
		if (known)
			remove_entry(shard, entry);
	}
	vgpu_unlock(&shard->lock);
	return known;
}

int64_t vgpu_ledger_adjust(enum vgpu_kind kind, uint64_t key, struct vgpu_charge owner,
			   int64_t delta_bytes)
{
	struct ledger *ledger = get_ledger();
	int64_t changed_bytes = 0;

	if (!ledger)
		return 0;
	struct shard *shard = shard_of(ledger, kind, key);
	vgpu_lock(&shard->lock);
	if (grow(shard)) {
		struct entry *entry = find(shard, kind, key);
		uint64_t old_bytes = entry->bytes; /* 0 in a free one */
		uint64_t less_bytes = delta_bytes < 0 ? -(uint64_t)delta_bytes : 0;
		owner.bytes = delta_bytes < 0
				  ? old_bytes - (less_bytes < old_bytes ? less_bytes : old_bytes)
				  : old_bytes + (uint64_t)delta_bytes;
		changed_bytes = (int64_t)(owner.bytes - old_bytes);
		if (owner.bytes)
			enter(shard, entry, kind, key, owner);
		else if (entry->kind)
			remove_entry(shard, entry);
	}
	vgpu_unlock(&shard->lock);
	return changed_bytes;
}

bool vgpu_ledger_has(enum vgpu_kind kind, uint64_t key)
{
	struct ledger *ledger = own_ledger();
	bool known;

	if (!ledger)
		return false;
	struct shard *shard = shard_of(ledger, kind, key);
	vgpu_lock(&shard->lock);
	known = shard->capacity && find(shard, kind, key)->kind;
	vgpu_unlock(&shard->lock);
	return known;
}

void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_MOST_CARDS],
			void (*let_go)(uint32_t hold))
{
	struct ledger *ledger = own_ledger();

	memset(bytes, 0, VGPU_MOST_CARDS * sizeof(*bytes));
	for (int i = 0; ledger && context && i < SHARD_COUNT; i++) {
		struct shard *shard = &ledger->shards[i];
		vgpu_lock(&shard->lock);
		for (uint64_t at = 0; at < shard->capacity; at++) {
			struct entry *entry = &shard->entries[at];
			/* What moves into the place is looked at too. */
			while (entry->kind && entry->context == context) {
				if (entry->hold)
					let_go(entry->hold);
				else
					bytes[entry->card] += entry->bytes;
				remove_entry(shard, entry);
			}
		}
		vgpu_unlock(&shard->lock);
	}
}

uint64_t vgpu_ledger_count(void)
{
	struct ledger *ledger = own_ledger();
	uint64_t count = 0;

	for (int i = 0; ledger && i < SHARD_COUNT; i++)
		count += __atomic_load_n(&ledger->shards[i].count, __ATOMIC_RELAXED);
	return count;
}
