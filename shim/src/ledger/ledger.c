/* See ledger.h. ledger_table.c has the table itself. */
#include "ledger/ledger.h"

#include <string.h>

#include "ledger/blocks.h"
#include "ledger/ledger_table.h"

_Static_assert(VGPU_MAX_SLOTS < UINT16_MAX, "a hold fits");

static struct vgpu_charge charge_in(const struct vgpu_entry *entry)
{
	return (struct vgpu_charge){entry->bytes, entry->gpu, entry->context, entry->hold};
}

enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced)
{
	struct vgpu_shard *shard = vgpu_shard_enter(kind, key, true);
	enum vgpu_ledger_put result = VGPU_LEDGER_NO_MEMORY;
	struct vgpu_entry *entry;

	if (!shard)
		return result;
	if (vgpu_shard_grow(shard)) {
		entry = vgpu_shard_find(shard, kind, key);
		result = entry->kind ? VGPU_LEDGER_REPLACED : VGPU_LEDGER_ADDED;
		if (replaced)
			*replaced = charge_in(entry);
		if (replaced || result == VGPU_LEDGER_ADDED)
			vgpu_shard_set(shard, entry,
				       (struct vgpu_entry){.key = key,
							   .bytes = charge.bytes,
							   .context = charge.context,
							   .hold = (uint16_t)charge.hold,
							   .gpu = (uint8_t)charge.gpu,
							   .kind = (uint8_t)kind});
	}
	vgpu_shard_leave(shard);
	return result;
}

bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge)
{
	struct vgpu_shard *shard = vgpu_shard_enter(kind, key, false);
	struct vgpu_entry *entry;
	bool known;

	if (!shard)
		return false;
	entry = vgpu_shard_find(shard, kind, key);
	known = entry && entry->kind;
	if (known && charge) {
		*charge = charge_in(entry);
		vgpu_shard_remove(shard, entry);
	}
	vgpu_shard_leave(shard);
	return known;
}

static void forget_entry(struct vgpu_shard *shard, struct vgpu_entry *entry, uint64_t *bytes,
			 void (*let_go)(uint32_t hold))
{
	if (entry->kind == VGPU_KIND_BLOCK) {
		*bytes += vgpu_block_bytes;
		vgpu_block_clear(shard, entry);
	} else if (entry->hold) {
		let_go(entry->hold);
	} else {
		*bytes += entry->bytes;
	}
	vgpu_shard_remove(shard, entry);
}

void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS],
			void (*let_go)(uint32_t hold))
{
	struct vgpu_shard *shard;

	memset(bytes, 0, VGPU_ENVIRONMENT_MAX_GPUS * sizeof(*bytes));
	for (unsigned int i = 0; context && (shard = vgpu_shard_number(i)); i++) {
		for (uint64_t at = 0; at < shard->capacity; at++) {
			struct vgpu_entry *entry = &shard->entries[at];
			/* Look at the same place again, because the removal moves another entry
			 * into it. */
			while (entry->kind && entry->context == context)
				forget_entry(shard, entry, &bytes[entry->gpu], let_go);
		}
		vgpu_shard_leave(shard);
	}
}
