/* Making claims, and keeping or dropping them; see claims.h. They are taken out in claims_taken.c.
 */
#include "claim_table.h"

#include "step.h"

bool vgpu_any_view; /* there was one */

uint32_t vgpu_claim_new(const struct vgpu_reservation *charge, CUdevice device)
{
	struct vgpu_claim_table *table = vgpu_claim_table();
	uint32_t memory, claim = 0;

	if (!table)
		return 0;
	if (!vgpu_lock(&table->lock))
		return 0;
	memory = vgpu_claimed_number(table);
	if (memory) {
		table->memory[memory] = (struct vgpu_claimed){.charge = *charge, .device = device};
		claim = vgpu_claim_number(table, memory);
	}
	if (memory && !claim)
		vgpu_claimed_free(table, memory);
	vgpu_unlock(&table->lock);
	return claim;
}

static bool claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t known;

	*claim = 0;
	if (!table)
		return true;
	if (!vgpu_lock(&table->lock))
		return false;
	known = *vgpu_claim_find(table, kind, key);
	if (known)
		*claim = vgpu_claim_number(table, table->claim[known].memory);
	vgpu_unlock(&table->lock);
	return *claim || !known;
}

bool vgpu_claim_handle(uint64_t handle, uint32_t *claim)
{
	return claim_known(VGPU_CLAIM_HANDLE, handle, claim);
}

bool vgpu_claim_external(uint64_t import, uint32_t *claim)
{
	return claim_known(VGPU_CLAIM_EXTERNAL, import, claim);
}

uint32_t vgpu_memory_named(uint64_t handle)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t memory;

	if (!table)
		return 0;
	if (!vgpu_lock(&table->lock))
		return 0;
	memory = table->claim[*vgpu_claim_find(table, VGPU_CLAIM_HANDLE, handle)].memory;
	vgpu_unlock(&table->lock);
	return memory;
}

/* The mapping that begins at an address; failing that, any that holds it. */
static uint32_t mapping_at(struct vgpu_claim_table *table, uint64_t address)
{
	uint32_t number = *vgpu_claim_find(table, VGPU_CLAIM_MAPPING, address);

	for (uint32_t i = 1; !number && i <= table->claims_used; i++)
		if (table->claim[i].hangs && table->claim[i].kind == VGPU_CLAIM_MAPPING &&
		    address - table->claim[i].key < table->claim[i].extent)
			number = i;
	return number;
}

bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint64_t offset = 0;
	uint32_t mapping;
	bool room = true;

	*list = 0;
	if (!table)
		return true;
	if (!vgpu_lock(&table->lock))
		return false;
	while (offset < bytes && room && (mapping = mapping_at(table, address + offset))) {
		uint32_t claim = vgpu_claim_number(table, table->claim[mapping].memory);

		room = claim != 0;
		if (room)
			table->claim[claim].next = *list;
		*list = room ? claim : *list;
		offset = table->claim[mapping].key + table->claim[mapping].extent - address;
	}
	vgpu_unlock(&table->lock);
	if (room)
		return true;
	vgpu_claims_drop(table, *list);
	*list = 0;
	return false;
}

/* Of which there is one with a key at a time. */
static bool is_alone(enum vgpu_claim_kind kind)
{
	return kind == VGPU_CLAIM_MAPPING || kind == VGPU_CLAIM_TILE ||
	       kind == VGPU_CLAIM_EXTERNAL || kind == VGPU_CLAIM_VIEW;
}

void vgpu_claim_end(uint32_t list, CUresult driver_said, struct vgpu_claim_to to)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t stale = 0, *link;

	VGPU_AT(HOLD_CALLED);
	if (!list || driver_said != CUDA_SUCCESS) {
		vgpu_claims_drop(table, list);
		return;
	}
	if (!vgpu_lock(&table->lock))
		return;
	/* Nothing else can be there: it went without our being told. */
	link = vgpu_claim_find(table, to.kind, to.key);
	if (*link && is_alone(to.kind))
		vgpu_claim_unhang(table, link, &stale);
	if (to.kind == VGPU_CLAIM_VIEW)
		__atomic_store_n(&vgpu_any_view, true, __ATOMIC_RELAXED);
	while (list) {
		struct vgpu_claim *claim = &table->claim[list];
		uint32_t number = list;

		list = claim->next;
		claim->kind = (uint8_t)to.kind;
		claim->key = to.key;
		claim->extent = to.extent;
		claim->owner = to.owner;
		vgpu_claim_hang(table, number);
	}
	vgpu_unlock(&table->lock);
	VGPU_AT(HOLD_KEPT);
	vgpu_claims_drop(table, stale);
}
