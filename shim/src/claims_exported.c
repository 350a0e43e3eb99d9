/*
 * Descriptors that the driver has exported; see claims.h. A number alone says nothing, since the
 * program may close it and have it again as another file: a claim knows which file it was.
 */
#include "claim_table.h"

#include "file.h"

enum { FEW_EXPORTS = 64 };

void vgpu_keep_export(uint32_t claim, int fd)
{
	struct vgpu_claim_to to = {.kind = VGPU_CLAIM_EXPORT, .key = (uint64_t)fd};
	struct vgpu_file file = {0};
	bool open = vgpu_file_of(fd, &file);

	to.extent = file.device;
	to.owner = file.inode;
	vgpu_claim_end(claim, open ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, to);
}

static bool is_closed(const struct vgpu_claim_table *table, const struct vgpu_claim *claim,
		      const struct vgpu_chosen *wanted)
{
	struct vgpu_file file;

	(void)table, (void)wanted;
	return !vgpu_file_of((int)claim->key, &file) || file.device != claim->extent ||
	       file.inode != claim->owner;
}

bool vgpu_drop_closed_exports(void)
{
	uint32_t list =
	    vgpu_take_chosen((struct vgpu_chosen){.kind = VGPU_CLAIM_EXPORT, .is = is_closed});

	if (list)
		vgpu_claims_drop(vgpu_claim_table_if_any(), list);
	return list != 0;
}

void vgpu_drop_closed_exports_if_few(void)
{
	struct vgpu_claim_table *table = vgpu_claim_table_if_any();

	if (table &&
	    __atomic_load_n(&table->kinds[VGPU_CLAIM_EXPORT], __ATOMIC_RELAXED) <= FEW_EXPORTS)
		(void)vgpu_drop_closed_exports();
}
