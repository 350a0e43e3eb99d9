/* See claim_table.h. */
#include "claim_table.h"

static struct vgpu_wiped *the_table;

struct vgpu_claim_table *vgpu_claim_table(void)
{
	return vgpu_wiped_pages(&the_table, sizeof(struct vgpu_claim_table));
}

struct vgpu_claim_table *vgpu_claim_table_if_any(void)
{
	return __atomic_load_n(&the_table, __ATOMIC_ACQUIRE) ? vgpu_claim_table() : NULL;
}

static uint32_t *bucket_of(struct vgpu_claim_table *table, enum vgpu_claim_kind kind, uint64_t key)
{
	uint64_t spread = (key + ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);

	return &table->bucket[spread >> (64 - VGPU_CLAIM_BUCKET_BITS)];
}

uint32_t vgpu_claim_number(struct vgpu_claim_table *table, uint32_t memory)
{
	uint32_t number = table->claims_free;

	if (number)
		table->claims_free = table->claim[number].next;
	else if (table->claims_used + 1 < VGPU_CLAIMS)
		number = ++table->claims_used;
	if (number) {
		table->claim[number] = (struct vgpu_claim){.memory = memory};
		table->memory[memory].claims++;
	}
	return number;
}

uint32_t vgpu_claimed_number(struct vgpu_claim_table *table)
{
	uint32_t number = table->memories_free;

	if (number)
		table->memories_free = table->memory[number].next_free;
	else if (table->memories_used + 1 < VGPU_CLAIMS)
		number = ++table->memories_used;
	return number;
}

void vgpu_claimed_free(struct vgpu_claim_table *table, uint32_t memory)
{
	table->memory[memory] = (struct vgpu_claimed){.next_free = table->memories_free};
	table->memories_free = memory;
}

void vgpu_claim_hang(struct vgpu_claim_table *table, uint32_t number)
{
	struct vgpu_claim *claim = &table->claim[number];
	uint32_t *bucket = bucket_of(table, claim->kind, claim->key);

	claim->next = *bucket;
	claim->hangs = true;
	*bucket = number;
	__atomic_add_fetch(&table->kinds[claim->kind], 1, __ATOMIC_RELAXED);
}

void vgpu_claim_unhang(struct vgpu_claim_table *table, uint32_t *link, uint32_t *list)
{
	uint32_t number = *link;

	*link = table->claim[number].next;
	table->claim[number].next = *list;
	table->claim[number].hangs = false;
	*list = number;
	__atomic_sub_fetch(&table->kinds[table->claim[number].kind], 1, __ATOMIC_RELAXED);
}

uint32_t *vgpu_claim_find(struct vgpu_claim_table *table, enum vgpu_claim_kind kind, uint64_t key)
{
	uint32_t *link = bucket_of(table, kind, key);

	while (*link && (table->claim[*link].kind != kind || table->claim[*link].key != key))
		link = &table->claim[*link].next;
	return link;
}

static uint32_t *link_to(struct vgpu_claim_table *table, uint32_t number)
{
	uint32_t *link = bucket_of(table, table->claim[number].kind, table->claim[number].key);

	while (*link != number)
		link = &table->claim[*link].next;
	return link;
}

/* What was bound to a multicast object is bound no more. */
static void unbind_all(struct vgpu_claim_table *table, uint32_t memory, uint32_t *list)
{
	for (uint32_t i = 1; i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == VGPU_CLAIM_BINDING &&
		    table->claim[i].owner == memory)
			vgpu_claim_unhang(table, link_to(table, i), list);
}

/* Drops one claim. What it was the last one to is freed, and its charge is the caller's to refund.
 */
static struct vgpu_reservation drop(struct vgpu_claim_table *table, uint32_t number,
				    uint32_t *orphans)
{
	struct vgpu_reservation charge = {.place = {.card = VGPU_CARD_UNMANAGED}};
	uint32_t memory = table->claim[number].memory;

	table->claim[number] = (struct vgpu_claim){.next = table->claims_free};
	table->claims_free = number;
	if (--table->memory[memory].claims)
		return charge;
	charge = table->memory[memory].charge;
	if (table->memory[memory].device == VGPU_MULTICAST)
		unbind_all(table, memory, orphans);
	vgpu_claimed_free(table, memory);
	return charge;
}

void vgpu_claims_drop(struct vgpu_claim_table *table, uint32_t list)
{
	while (list) {
		struct vgpu_reservation charge;
		uint32_t number = list;

		if (!vgpu_lock(&table->lock))
			return;
		list = table->claim[number].next;
		charge = drop(table, number, &list);
		vgpu_unlock(&table->lock);
		vgpu_cancel(&charge);
	}
}

uint32_t vgpu_take_chosen(struct vgpu_chosen wanted)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t list = 0;

	if (!table || !__atomic_load_n(&table->kinds[wanted.kind], __ATOMIC_RELAXED))
		return 0;
	if (!vgpu_lock(&table->lock))
		return 0;
	for (uint32_t i = 1; i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == wanted.kind &&
		    wanted.is(table, &table->claim[i], &wanted))
			vgpu_claim_unhang(table, link_to(table, i), &list);
	vgpu_unlock(&table->lock);
	return list;
}
