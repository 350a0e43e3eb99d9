#include "region/mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region/directory.h"
#include "region/grant.h"
#include "region/region_file.h"

enum vgpu_result vgpu_map_region(struct vgpu_process *process, const char *path, int *os_errno)
{
	struct vgpu_file file;
	int fd;
	enum vgpu_result result =
	    vgpu_region_open(path, vgpu_grant_id(), vgpu_grant_gpu_count(), &fd, &file, os_errno);

	if (result != VGPU_OK)
		return result;
	result = vgpu_region_map(fd, vgpu_grant_gpu_count(), &process->view, os_errno);
	syscall(SYS_close, fd);
	process->region_device = file.device;
	process->region_inode = file.inode;
	vgpu_identity_of_self(&process->self);
	__atomic_store_n(&process->mapped, result == VGPU_OK, __ATOMIC_RELEASE);
	return result;
}

enum vgpu_result vgpu_reopen(const struct vgpu_process *process, struct vgpu_slots *slots,
			     struct vgpu_error *error)
{
	struct vgpu_file file;
	char path[VGPU_PATH_BYTES];
	enum vgpu_result result;
	int os_errno;

	*slots = (struct vgpu_slots){&process->view, -1, &process->self};
	vgpu_directory_path(VGPU_FILE_REGION, path);
	result = vgpu_region_open(path, vgpu_grant_id(), vgpu_grant_gpu_count(), &slots->fd, &file,
				  &os_errno);
	if (result == VGPU_OK &&
	    (file.device != process->region_device || file.inode != process->region_inode)) {
		vgpu_close(slots);
		slots->fd = -1;
		result = VGPU_REGION_INVALID;
	}
	return result == VGPU_OK ? VGPU_OK : vgpu_fail(error, result, os_errno, path);
}

void vgpu_close(const struct vgpu_slots *slots)
{
	if (slots->fd >= 0)
		syscall(SYS_close, slots->fd);
}

/*
 * The agent subtracts a container's charge, without the floats in its slots, from what NVML reports
 * for its processes. The rest is its overhead. If a float is missing there, the overhead is too
 * low, and the container could take that much more than its limit. So a slot states a float before
 * the float is charged, and until after it is refunded. If the process stops between, the overhead
 * is too high by the float. If it exits, its slot has both the charge and the float, and both end
 * when another process frees the slot. A process that has lost its slot states the float in its new
 * one before it charges there what it holds.
 */
static void state_float(const struct vgpu_process *process, int gpu)
{
	uint64_t *stated =
	    &vgpu_view_slot_gpu(&process->view, process->owner.slot, gpu)->float_bytes;
	uint64_t bytes = __atomic_load_n(&process->gpus[gpu].float_bytes, __ATOMIC_ACQUIRE);

	if (__builtin_expect(__atomic_load_n(stated, __ATOMIC_RELAXED) != bytes, 0) &&
	    vgpu_slot_generation(vgpu_view_slot(&process->view, process->owner.slot)) ==
		process->owner.generation)
		__atomic_store_n(stated, bytes, __ATOMIC_RELEASE);
}

void vgpu_recharge(struct vgpu_process *process, int gpu)
{
	uint64_t held_bytes = process->gpus[gpu].held_bytes;
	uint64_t charged_bytes =
	    vgpu_counter_charged_bytes(&process->view, gpu, process->owner.slot);

	state_float(process, gpu);
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
