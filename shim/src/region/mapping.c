/* See mapping.h. */
#include "region/mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region/directory.h"
#include "region/grant.h"
#include "region/region_file.h"

enum vgpu_result vgpu_reopen(const struct vgpu_process *process, int *fd, int *os_errno)
{
	struct vgpu_file file;
	char path[VGPU_PATH_BYTES];
	enum vgpu_result result;

	vgpu_directory_path(VGPU_FILE_REGION, path);
	result =
	    vgpu_region_open(path, vgpu_grant_id(), vgpu_grant_gpu_count(), fd, &file, os_errno);
	if (result != VGPU_OK ||
	    (file.device == process->region_device && file.inode == process->region_inode))
		return result;
	syscall(SYS_close, *fd);
	*fd = -1;
	return VGPU_REGION_INVALID;
}

void vgpu_recharge(struct vgpu_process *process, int gpu)
{
	uint64_t held_bytes = process->gpus[gpu].held_bytes;
	uint64_t charged_bytes =
	    vgpu_counter_charged_bytes(&process->view, gpu, process->owner.slot);

	if (held_bytes > charged_bytes)
		vgpu_counter_change(&process->view, gpu, &process->owner, true,
				    held_bytes - charged_bytes, VGPU_NO_LIMIT);
}

void *vgpu_anchor_cast(int fd, uint32_t slot)
{
	void *anchor =
	    vgpu_map_file(fd, vgpu_slots_anchor_offset(slot), VGPU_ANCHOR_MAPPED_BYTES, PROT_NONE);

	if (anchor)
		madvise(anchor, VGPU_ANCHOR_MAPPED_BYTES, MADV_DONTFORK);
	return anchor;
}
