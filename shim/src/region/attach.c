/*
 * Attaching: connects grant, region, slots and this process, under the setup lock.
 *
 * No descriptor stays open. A mapping keeps its open file description, and so the lock taken
 * through it: the anchor, a page mapped without access and not inherited by fork or clone, holds
 * this process's slot lock exactly as long as this address space exists. Programs may close, reuse
 * or pass on any descriptors; exec and exit drop the lock. (On overlayfs a mapping belongs to the
 * layer below, and the lock ends with the descriptor; there /proc's maps are searched for the
 * anchor's offset, which names the slot.) Two copies of the library in one process are two holders.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/step.h"
#include "region/attach.h"
#include "region/directory.h"
#include "region/grant.h"
#include "region/mapping.h"
#include "region/region_file.h"
#include "region/shared.h"
#include "region/shared_limits.h"

static enum vgpu_result map_region(struct vgpu_process *process, const char *path, int *os_errno)
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

/* Load the grant and map the region, once; the caller holds setup. */
static enum vgpu_result look_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	char path[VGPU_PATH_BYTES];
	int os_errno = 0;
	enum vgpu_result result;

	if (vgpu_directory_environment())
		return vgpu_limits_poll(process, map_region, error);
	vgpu_directory_path(VGPU_FILE_GRANT, path);
	result = vgpu_grant_load(path, &os_errno);
	if (result != VGPU_OK)
		return vgpu_fail(error, result, os_errno, path);
	vgpu_directory_path(VGPU_FILE_REGION, path);
	if (!process->mapped)
		result = map_region(process, path, &os_errno);
	return result == VGPU_OK ? VGPU_OK : vgpu_fail(error, result, os_errno, path);
}

static void unlock_gpus(struct vgpu_process *process, int count)
{
	for (int gpu = 0; gpu < count; gpu++)
		vgpu_unlock(&process->gpus[gpu].lock);
}

static bool lock_gpus(struct vgpu_process *process)
{
	for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		if (!vgpu_lock(&process->gpus[gpu].lock)) {
			unlock_gpus(process, gpu);
			return false;
		}
	return true;
}

static bool set_attached(struct vgpu_process *process, bool attached)
{
	if (!lock_gpus(process))
		return false;
	__atomic_store_n(&process->attached, attached, __ATOMIC_RELEASE);
	unlock_gpus(process, VGPU_ENVIRONMENT_MAX_GPUS);
	return true;
}

static void drop_anchor(struct vgpu_process *process)
{
	if (process->anchor)
		munmap(process->anchor, VGPU_ANCHOR_MAPPED_BYTES);
	process->anchor = NULL;
}

static enum vgpu_result take_slot(struct vgpu_process *process, int fd, const char *path,
				  struct vgpu_error *error)
{
	struct vgpu_slots slots = {&process->view, fd, &process->self};

	drop_anchor(process);
	vgpu_slots_reap_at_start(&slots);
	VGPU_AT(ATTACH_REAPED);
	if (!vgpu_slots_claim(&slots, &process->owner)) {
		vgpu_slots_reap(&slots, NULL, VGPU_SEARCH_QUICK);
		if (!vgpu_slots_claim(&slots, &process->owner))
			return vgpu_fail(error, VGPU_NO_SLOT, 0, path);
	}
	process->anchor = vgpu_anchor_cast(fd, process->owner.slot);
	if (!process->anchor) {
		int os_errno = errno;

		vgpu_slots_free(&slots, &process->owner);
		return vgpu_fail(error, VGPU_SYSTEM, os_errno, path);
	}
	VGPU_AT(ATTACH_ANCHORED);
	for (int gpu = 0; gpu < process->view.gpu_count; gpu++)
		vgpu_recharge(process, gpu);
	return VGPU_OK;
}

static enum vgpu_result attach_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	char path[VGPU_PATH_BYTES];
	int fd, os_errno = 0;
	enum vgpu_result result = look_locked(process, error);

	if (result != VGPU_OK)
		return result;
	result = vgpu_reopen(process, &fd, &os_errno);
	vgpu_directory_path(VGPU_FILE_REGION, path);
	if (result != VGPU_OK)
		return vgpu_fail(error, result, os_errno, path);
	VGPU_AT(ATTACH_OPENED);
	result = take_slot(process, fd, path, error);
	syscall(SYS_close, fd);
	if (result == VGPU_OK && !set_attached(process, true))
		result = vgpu_fail(error, VGPU_SYSTEM, EDEADLK, path);
	VGPU_AT(ATTACH_DONE);
	return result;
}

__attribute__((noinline)) static enum vgpu_result attach(struct vgpu_process *process,
							 struct vgpu_error *error)
{
	enum vgpu_result result;

	if (!process)
		return vgpu_fail(error, VGPU_SYSTEM, ENOMEM, "");
	result = vgpu_directory_find(error);
	if (result != VGPU_OK)
		return result;
	if (!vgpu_lock(&process->setup))
		return vgpu_fail(error, VGPU_SYSTEM, EDEADLK, "");
	if (!process->attached)
		result = attach_locked(process, error);
	vgpu_unlock(&process->setup);
	return result;
}

enum vgpu_result vgpu_attach(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_attached(process) ? VGPU_OK : attach(process, error);
}

/* A process that only queries takes no slot, but may have had one before exec; the caller holds
 * setup. */
static void reap_former_slots(struct vgpu_process *process)
{
	struct vgpu_slots slots = {&process->view, -1, &process->self};
	int os_errno;

	if (vgpu_reopen(process, &slots.fd, &os_errno) != VGPU_OK)
		return;
	vgpu_slots_reap_at_start(&slots);
	syscall(SYS_close, slots.fd);
}

enum vgpu_result vgpu_peek(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();
	enum vgpu_result result;

	if (!process)
		return vgpu_fail(error, VGPU_SYSTEM, ENOMEM, "");
	if (vgpu_is_mapped(process))
		return VGPU_OK;
	result = vgpu_directory_find(error);
	if (result != VGPU_OK)
		return result;
	if (!vgpu_lock(&process->setup))
		return vgpu_fail(error, VGPU_SYSTEM, EDEADLK, "");
	result = look_locked(process, error);
	if (result == VGPU_OK && !process->attached)
		reap_former_slots(process);
	vgpu_unlock(&process->setup);
	return result;
}

enum vgpu_result vgpu_attach_again(struct vgpu_process *process)
{
	if (!vgpu_lock(&process->setup))
		return VGPU_SYSTEM;
	if (process->attached &&
	    __atomic_load_n(&vgpu_view_slot(&process->view, process->owner.slot)->generation,
			    __ATOMIC_ACQUIRE) != process->owner.generation)
		(void)set_attached(process, false);
	vgpu_unlock(&process->setup);
	return vgpu_attach(NULL);
}
