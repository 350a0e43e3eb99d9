/* See ledger_table.h. The whole table is in anonymous pages that the kernel wipes in a fork child
 * (fork_wiped.h). Wiped pages are an empty ledger with free locks. If the kernel cannot wipe pages,
 * a child makes its own table, which has no pointer to its parent's pages. */
#include "ledger/ledger_table.h"

#include <string.h>
#include <sys/mman.h>

#include "os/fork_wiped.h"

enum { SHARD_BITS = 6, SHARD_COUNT = 1 << SHARD_BITS, FIRST_CAPACITY = 64 };

struct table {
	struct vgpu_fork_wiped wiped;
	uint32_t blocks[VGPU_ENVIRONMENT_MAX_GPUS];
	struct vgpu_shard shards[SHARD_COUNT];
};

static struct vgpu_fork_wiped *the_table;

static struct table *get_table(void)
{
	return vgpu_fork_wiped_pages(&the_table, sizeof(struct table));
}

static bool was_made(void)
{
	return __atomic_load_n(&the_table, __ATOMIC_RELAXED) != NULL;
}

uint32_t *vgpu_ledger_blocks(int gpu)
{
	struct table *table = get_table();

	return table && gpu >= 0 ? &table->blocks[gpu] : NULL;
}

/* A hash of the key. Addresses differ in their middle bits, which the multiplication spreads to the
 * top. */
static uint64_t spread(enum vgpu_kind kind, uint64_t key)
{
	return (key + ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t hash_position(const struct vgpu_shard *shard, enum vgpu_kind kind, uint64_t key)
{
	return spread(kind, key) << SHARD_BITS >> (64 - __builtin_ctzll(shard->capacity));
}

struct vgpu_shard *vgpu_shard_enter(enum vgpu_kind kind, uint64_t key, bool make)
{
	struct table *table = make || was_made() ? get_table() : NULL;
	struct vgpu_shard *shard;

	if (!table)
		return NULL;
	shard = &table->shards[spread(kind, key) >> (64 - SHARD_BITS)];
	/* The count is read without the lock, because an entry that a caller may look for was
	 * entered before the call. */
	if (!make && !__atomic_load_n(&shard->count, __ATOMIC_RELAXED))
		return NULL;
	return vgpu_lock(&shard->lock) ? shard : NULL;
}

struct vgpu_shard *vgpu_shard_number(unsigned int number)
{
	struct table *table = number < SHARD_COUNT && was_made() ? get_table() : NULL;

	if (!table)
		return NULL;
	return vgpu_lock(&table->shards[number].lock) ? &table->shards[number] : NULL;
}

/* The search always ends, because an entry is always free. */
struct vgpu_entry *vgpu_shard_find(const struct vgpu_shard *shard, enum vgpu_kind kind,
				   uint64_t key)
{
	struct vgpu_entry *entry;
	uint64_t at;

	if (!shard->capacity)
		return NULL;
	at = hash_position(shard, kind, key);
	for (;; at = (at + 1) & (shard->capacity - 1)) {
		entry = &shard->entries[at];
		if (!entry->kind || (entry->key == key && entry->kind == kind))
			return entry;
	}
}

/* The old entries stay in use until the new ones are complete. */
bool vgpu_shard_grow(struct vgpu_shard *shard)
{
	struct vgpu_shard larger = {.capacity = shard->capacity};

	if (shard->capacity && shard->count < shard->capacity / 4 * 3)
		return true;
	larger.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY;
	larger.entries = vgpu_fork_wiped_fresh(larger.capacity * sizeof(struct vgpu_entry), NULL);
	if (!larger.entries)
		return shard->capacity && shard->count + 1 < shard->capacity;
	for (uint64_t i = 0; i < shard->capacity; i++)
		if (shard->entries[i].kind)
			*vgpu_shard_find(&larger, shard->entries[i].kind, shard->entries[i].key) =
			    shard->entries[i];
	if (shard->entries)
		munmap(shard->entries, shard->capacity * sizeof(struct vgpu_entry));
	shard->entries = larger.entries;
	shard->capacity = larger.capacity;
	return true;
}

/* Remove an entry, and close the gap: move up later entries that a search would no longer find. */
void vgpu_shard_remove(struct vgpu_shard *shard, struct vgpu_entry *entry)
{
	uint64_t mask = shard->capacity - 1;
	uint64_t gap = (uint64_t)(entry - shard->entries);

	for (uint64_t at = (gap + 1) & mask; shard->entries[at].kind; at = (at + 1) & mask) {
		uint64_t position =
		    hash_position(shard, shard->entries[at].kind, shard->entries[at].key);
		if (((at - position) & mask) >= ((at - gap) & mask)) {
			shard->entries[gap] = shard->entries[at];
			gap = at;
		}
	}
	memset(&shard->entries[gap], 0, sizeof(struct vgpu_entry));
	__atomic_store_n(&shard->count, shard->count - 1, __ATOMIC_RELAXED);
}
