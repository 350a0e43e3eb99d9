/*
 * Descriptors that the driver has exported; see claims.h. A number alone says nothing, since the
 * program may close it and have it again as another file: a claim knows which file it was.
 */
#include "claim_table.h"

#include "file.h"
#include "process.h"

enum {
	LOOK_NS = 500, /* at one: not measured, since who waits or is put off looks no more */
	REST = 20,     /* of its time a process spends one part in so many on looking at many */
};

static uint64_t rests_until_ns;

void vgpu_forget_exports(int fd)
{
	uint32_t stale;

	while ((stale = vgpu_take_export(fd)))
		vgpu_settle_claims(stale, CUDA_SUCCESS);
}

void vgpu_keep_export(uint32_t claim, int fd)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXPORT, .key = (uint64_t)fd};
	struct vgpu_file file = {0};
	bool open = vgpu_file_of(fd, &file);

	to.extent = file.device;
	to.owner = file.inode;
	vgpu_claim_end(claim, open ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, to);
}

uint32_t vgpu_claim_export(int fd, int card, uint64_t bytes)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();
	const struct vgpu_claimed *memory;
	uint32_t claim = 0, number;

	if (!table || !vgpu_lock(&table->lock))
		return 0;
	number = table->claim[*vgpu_claim_find(table, VGPU_CLAIM_EXPORT, (uint64_t)fd)].memory;
	memory = &table->memory[number];
	if (number && memory->claims == 1 && memory->charge.place.card == card &&
	    memory->charge.bytes == bytes)
		claim = vgpu_claim_number(table, number);
	vgpu_unlock(&table->lock);
	return claim;
}

static bool is_closed(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		      const struct vgpu_chosen *wanted)
{
	struct vgpu_file file;

	(void)table, (void)wanted;
	return !vgpu_file_of((int)claim->key, &file) || file.device != claim->extent ||
	       file.inode != claim->owner;
}

/* Claims, of which some may be closed. */
static uint32_t count(void)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();

	return table ? __atomic_load_n(&table->kinds[VGPU_CLAIM_EXPORT], __ATOMIC_RELAXED) : 0;
}

bool vgpu_drop_closed_exports(void)
{
	uint32_t exports = count(), list;

	if (!exports)
		return false;
	list = vgpu_take_chosen((struct vgpu_chosen){.kind = VGPU_CLAIM_EXPORT, .is = is_closed});
	if (list)
		vgpu_claims_drop(vgpu_claim_table_if_any(), list);
	__atomic_store_n(&rests_until_ns, vgpu_now_ns() + (uint64_t)exports * LOOK_NS * REST,
			 __ATOMIC_RELAXED);
	return list != 0;
}

void vgpu_drop_closed_exports_if_cheap(uint32_t few)
{
	uint32_t exports = count();

	if (exports &&
	    (exports <= few || vgpu_now_ns() >= __atomic_load_n(&rests_until_ns, __ATOMIC_RELAXED)))
		(void)vgpu_drop_closed_exports();
}
