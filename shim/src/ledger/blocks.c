/* See blocks.h. The memory of a removed block's bits is reused. */
#include "ledger/blocks.h"

#include <string.h>

#include "ledger/ledger_table.h"
#include "os/fork_wiped.h"

enum { WORD_BITS = 64, BITS_AT_ONCE = 64 };

uint64_t vgpu_block_bytes = UINT64_C(2) << 20;

static bool get_bit(const struct vgpu_bits *bits, unsigned int unit)
{
	return bits->words[unit / WORD_BITS] >> unit % WORD_BITS & 1;
}

static void flip_bit(struct vgpu_bits *bits, unsigned int unit)
{
	bits->words[unit / WORD_BITS] ^= UINT64_C(1) << unit % WORD_BITS;
}

static void give_bits(struct vgpu_shard *shard, struct vgpu_bits *bits)
{
	memcpy(bits->words, &shard->spare, sizeof(shard->spare));
	shard->spare = bits;
}

/* Return bits for a block, all zero, or NULL. */
static struct vgpu_bits *take_bits(struct vgpu_shard *shard)
{
	struct vgpu_bits *bits = shard->spare;

	if (!bits) {
		bits = vgpu_fork_wiped_fresh(BITS_AT_ONCE * sizeof(*bits), NULL);
		for (int i = 0; bits && i < BITS_AT_ONCE; i++)
			give_bits(shard, &bits[i]);
		bits = shard->spare;
	}
	if (!bits)
		return NULL;
	memcpy(&shard->spare, bits->words, sizeof(shard->spare));
	bits->words[0] = 0;
	return bits;
}

static void count_block(int gpu, uint32_t change)
{
	__atomic_fetch_add(vgpu_ledger_blocks(gpu), change, __ATOMIC_RELAXED);
}

/* Release the bits of a block without allocations, which are all zero. */
static void close_empty(struct vgpu_shard *shard, const struct vgpu_entry *entry)
{
	count_block(entry->gpu, UINT32_MAX);
	give_bits(shard, entry->bits);
}

void vgpu_block_clear(struct vgpu_shard *shard, struct vgpu_entry *entry)
{
	memset(entry->bits, 0, sizeof(*entry->bits));
	close_empty(shard, entry);
}

bool vgpu_block_any(int gpu)
{
	uint32_t *count = vgpu_ledger_blocks(gpu);

	return count && __atomic_load_n(count, __ATOMIC_RELAXED);
}

static bool is_of(const struct vgpu_entry *entry, const struct vgpu_charge *owner)
{
	return entry->kind && entry->context == owner->context && entry->gpu == owner->gpu;
}

static enum vgpu_block enter_locked(struct vgpu_shard *shard, uint64_t block, unsigned int unit,
				    const struct vgpu_charge *owner, bool only_known,
				    struct vgpu_charge *replaced)
{
	struct vgpu_entry *entry = vgpu_shard_find(shard, VGPU_KIND_BLOCK, block);
	struct vgpu_bits *bits;

	if (entry && is_of(entry, owner)) {
		/* If the bit is set already, the driver freed an earlier allocation there without a
		 * hooked call. */
		entry->live += !get_bit(entry->bits, unit);
		if (!get_bit(entry->bits, unit))
			flip_bit(entry->bits, unit);
		return VGPU_BLOCK_KNOWN;
	}
	if (only_known)
		return VGPU_BLOCK_NEW;
	bits = take_bits(shard);
	if (!bits || !vgpu_shard_grow(shard)) {
		if (bits)
			give_bits(shard, bits);
		return VGPU_BLOCK_NO_MEMORY;
	}
	entry = vgpu_shard_find(shard, VGPU_KIND_BLOCK, block);
	if (entry->kind) {
		*replaced = (struct vgpu_charge){.gpu = entry->gpu, .context = entry->context};
		vgpu_block_clear(shard, entry);
	}
	flip_bit(bits, unit);
	vgpu_shard_set(shard, entry,
		       (struct vgpu_entry){.key = block,
					   .bits = bits,
					   .context = owner->context,
					   .live = 1,
					   .gpu = (uint8_t)owner->gpu,
					   .kind = VGPU_KIND_BLOCK});
	count_block(owner->gpu, 1);
	return VGPU_BLOCK_NEW;
}

enum vgpu_block vgpu_block_enter(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
				 bool only_known, struct vgpu_charge *replaced)
{
	struct vgpu_shard *shard = vgpu_shard_enter(VGPU_KIND_BLOCK, block, true);
	enum vgpu_block result;

	*replaced = (struct vgpu_charge){.gpu = -1};
	if (!shard)
		return VGPU_BLOCK_NO_MEMORY;
	result = enter_locked(shard, block, unit, owner, only_known, replaced);
	vgpu_shard_leave(shard);
	return result;
}

bool vgpu_block_take(uint64_t block, unsigned int unit, struct vgpu_charge *owner)
{
	struct vgpu_shard *shard = vgpu_shard_enter(VGPU_KIND_BLOCK, block, false);
	struct vgpu_entry *entry;
	bool known;

	if (!shard)
		return false;
	entry = vgpu_shard_find(shard, VGPU_KIND_BLOCK, block);
	known = entry && entry->kind && get_bit(entry->bits, unit);
	if (known) {
		flip_bit(entry->bits, unit);
		*owner = (struct vgpu_charge){.gpu = entry->gpu, .context = entry->context};
	}
	vgpu_shard_leave(shard);
	return known;
}

bool vgpu_block_release(uint64_t block, unsigned int unit, const struct vgpu_charge *owner,
			bool freed)
{
	struct vgpu_shard *shard = vgpu_shard_enter(VGPU_KIND_BLOCK, block, false);
	struct vgpu_entry *entry;
	bool last = false;

	if (!shard)
		return false;
	entry = vgpu_shard_find(shard, VGPU_KIND_BLOCK, block);
	/* If the entry is gone or has another owner, the block was refunded meanwhile. */
	if (entry && is_of(entry, owner)) {
		if (!freed && !get_bit(entry->bits, unit))
			flip_bit(entry->bits, unit);
		else
			last = --entry->live == 0;
	}
	if (last) {
		close_empty(shard, entry);
		vgpu_shard_remove(shard, entry);
	}
	vgpu_shard_leave(shard);
	return last;
}
