/* Taking claims out before a call that ends them, and settling them after it; see claims.h. */
#include "claim_table.h"

#include "step.h"

static uint32_t take_one(enum vgpu_claim_kind kind, uint64_t key)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t list = 0, *link;

	if (!table)
		return 0;
	if (!vgpu_lock(&table->lock))
		return 0;
	link = vgpu_claim_find(table, kind, key);
	if (*link)
		vgpu_claim_unhang(table, link, &list);
	vgpu_unlock(&table->lock);
	return list;
}

uint32_t vgpu_take_handle(uint64_t handle)
{
	return take_one(VGPU_CLAIM_HANDLE, handle);
}

uint32_t vgpu_take_tile(uint64_t key)
{
	return take_one(VGPU_CLAIM_TILE, key);
}

uint32_t vgpu_take_external(uint64_t import)
{
	return take_one(VGPU_CLAIM_EXTERNAL, import);
}

uint32_t vgpu_take_known_view(uint64_t key)
{
	return take_one(VGPU_CLAIM_VIEW, key);
}

uint32_t vgpu_take_export(int fd)
{
	return take_one(VGPU_CLAIM_EXPORT, (uint64_t)fd);
}

void vgpu_forget_handle(uint64_t handle)
{
	uint32_t stale;

	while ((stale = vgpu_take_handle(handle)))
		vgpu_settle_claims(stale, CUDA_SUCCESS);
}

static uint32_t take_mappings_in_a_row(uint64_t address, uint64_t bytes, uint64_t *done_bytes)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint64_t offset = 0;
	uint32_t list = 0, *link;

	*done_bytes = 0;
	if (!table)
		return 0;
	if (!vgpu_lock(&table->lock))
		return 0;
	while (offset < bytes &&
	       *(link = vgpu_claim_find(table, VGPU_CLAIM_MAPPING, address + offset))) {
		uint64_t extent = table->claim[*link].extent;

		if (extent > bytes - offset || !extent)
			break; /* the driver refuses a part of a mapping */
		vgpu_claim_unhang(table, link, &list);
		offset += extent;
	}
	vgpu_unlock(&table->lock);
	*done_bytes = offset;
	return list;
}

/* The lists are nobody else's. */
static uint32_t joined_lists(uint32_t first, uint32_t second)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	uint32_t last = first;

	if (!first || !second)
		return first ? first : second;
	while (table->claim[last].next)
		last = table->claim[last].next;
	table->claim[last].next = second;
	return first;
}

static bool in_part(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		    const struct vgpu_chosen *wanted)
{
	return claim->owner == wanted->owner && claim->key - wanted->key < wanted->extent &&
	       table->memory[claim->memory].device == wanted->device;
}

uint32_t vgpu_take_bindings(uint32_t multicast, CUdevice device, uint64_t offset, uint64_t bytes)
{
	return multicast ? vgpu_take_chosen((struct vgpu_chosen){.kind = VGPU_CLAIM_BINDING,
								 .is = in_part,
								 .key = offset,
								 .extent = bytes,
								 .owner = multicast,
								 .device = device})
			 : 0;
}

static bool is_within(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		      const struct vgpu_chosen *wanted)
{
	uint64_t offset = claim->key - wanted->key;

	(void)table;
	return offset < wanted->extent && claim->extent <= wanted->extent - offset;
}

/* Behind memory that is nobody's charge all have to be looked at. */
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes)
{
	uint64_t done_bytes;
	uint32_t list = take_mappings_in_a_row(address, bytes, &done_bytes);

	if (done_bytes < bytes)
		list = joined_lists(
		    list, vgpu_take_chosen((struct vgpu_chosen){.kind = VGPU_CLAIM_MAPPING,
								.is = is_within,
								.key = address + done_bytes,
								.extent = bytes - done_bytes}));
	return list;
}

static bool has_owner(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		      const struct vgpu_chosen *wanted)
{
	(void)table;
	return claim->owner == wanted->owner;
}

static bool has_extent(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		       const struct vgpu_chosen *wanted)
{
	(void)table;
	return claim->extent == wanted->extent;
}

uint32_t vgpu_take_tiles_of_array(uint64_t array)
{
	return vgpu_take_chosen(
	    (struct vgpu_chosen){.kind = VGPU_CLAIM_TILE, .is = has_owner, .owner = array});
}

void vgpu_settle_claims(uint32_t list, CUresult driver_said)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();

	VGPU_AT(HOLD_LET);
	if (driver_said == CUDA_SUCCESS) {
		vgpu_claims_drop(table, list);
		VGPU_AT(HOLD_REFUNDED);
		return;
	}
	while (list) {
		uint32_t number = list;

		if (!vgpu_lock(&table->lock))
			return;
		list = table->claim[number].next;
		vgpu_claim_hang(table, number);
		vgpu_unlock(&table->lock);
	}
}

void vgpu_claims_end_context(uint32_t context)
{
	static const enum vgpu_claim_kind kinds[] = {VGPU_CLAIM_TILE, VGPU_CLAIM_EXTERNAL,
						     VGPU_CLAIM_VIEW};

	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		vgpu_settle_claims(vgpu_take_chosen((struct vgpu_chosen){
				       .kind = kinds[i], .is = has_extent, .extent = context}),
				   CUDA_SUCCESS);
}
