/*
 * Attaching: connects the grant, the region, a slot and this process, under the setup lock.
 *
 * A process holds its slot's lock without an open descriptor, because programs may close or reuse
 * any descriptor. The lock belongs to an open file description, which a mapping keeps open. That
 * mapping is the anchor: a page without access, which no child by fork or clone inherits. So the
 * lock lasts exactly as long as this address space, and ends with exec and exit. On overlayfs a
 * mapping belongs to the layer below, and the lock ends with the descriptor. There other processes
 * look for the anchor in /proc/PID/maps, where its offset names the slot. Two copies of the library
 * in one process hold two slots.
 */
#include <errno.h>
#include <sys/mman.h>

#include "os/step.h"
#include "region/directory.h"
#include "region/grant.h"
#include "region/mapping.h"
#include "region/shared_limits.h"

/* Load the grant and map the region, once. The caller holds `setup`. */
static enum vgpu_result look_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	char path[VGPU_PATH_BYTES];
	int os_errno = 0;
	enum vgpu_result result;

	if (vgpu_directory_environment())
		return vgpu_limits_poll(process, error);
	vgpu_directory_path(VGPU_FILE_GRANT, path);
	result = vgpu_grant_load(path, &os_errno);
	if (result != VGPU_OK)
		return vgpu_fail(error, result, os_errno, path);
	vgpu_directory_path(VGPU_FILE_REGION, path);
	if (!process->mapped)
		result = vgpu_map_region(process, path, &os_errno);
	return result == VGPU_OK ? VGPU_OK : vgpu_fail(error, result, os_errno, path);
}

static bool set_attached(struct vgpu_process *process, bool attached)
{
	int locked = 0;
	bool all;

	while (locked < VGPU_ENVIRONMENT_MAX_GPUS && vgpu_lock(&process->gpus[locked].lock))
		locked++;
	all = locked == VGPU_ENVIRONMENT_MAX_GPUS;
	if (all)
		__atomic_store_n(&process->attached, attached, __ATOMIC_RELEASE);
	while (locked)
		vgpu_unlock(&process->gpus[--locked].lock);
	return all;
}

static void drop_anchor(struct vgpu_process *process)
{
	if (process->anchor)
		munmap(process->anchor, VGPU_ANCHOR_MAPPED_BYTES);
	process->anchor = NULL;
}

static enum vgpu_result take_slot(struct vgpu_process *process, const struct vgpu_slots *slots,
				  int *os_errno)
{
	drop_anchor(process);
	vgpu_slots_reap_at_start(slots);
	VGPU_AT(ATTACH_REAPED);
	if (!vgpu_slots_claim(slots, &process->owner, VGPU_SLOT_LIVE)) {
		vgpu_slots_reap(slots, NULL, VGPU_SEARCH_QUICK);
		if (!vgpu_slots_claim(slots, &process->owner, VGPU_SLOT_LIVE))
			return VGPU_NO_SLOT;
	}
	process->anchor = vgpu_anchor_cast(slots->fd, process->owner.slot);
	if (!process->anchor) {
		*os_errno = errno;
		vgpu_slots_free(slots, &process->owner);
		return VGPU_SYSTEM;
	}
	VGPU_AT(ATTACH_ANCHORED);
	for (int gpu = 0; gpu < process->view.gpu_count; gpu++)
		vgpu_recharge(process, gpu);
	return VGPU_OK;
}

static enum vgpu_result attach_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	struct vgpu_slots slots;
	char path[VGPU_PATH_BYTES];
	int os_errno = 0;
	enum vgpu_result result;

	if (process->attached)
		return VGPU_OK;
	result = look_locked(process, error);
	if (result == VGPU_OK)
		result = vgpu_reopen(process, &slots, error);
	if (result != VGPU_OK)
		return result;
	VGPU_AT(ATTACH_OPENED);
	result = take_slot(process, &slots, &os_errno);
	vgpu_close(&slots);
	if (result == VGPU_OK && !set_attached(process, true)) {
		result = VGPU_SYSTEM;
		os_errno = EDEADLK;
	}
	vgpu_directory_path(VGPU_FILE_REGION, path);
	VGPU_AT(ATTACH_DONE);
	return result == VGPU_OK ? VGPU_OK : vgpu_fail(error, result, os_errno, path);
}

/* A process that only queries takes no slot. It frees one that it may have had before exec. */
static enum vgpu_result peek_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	enum vgpu_result result = look_locked(process, error);
	struct vgpu_slots slots;

	if (result == VGPU_OK && !process->attached &&
	    vgpu_reopen(process, &slots, NULL) == VGPU_OK) {
		vgpu_slots_reap_at_start(&slots);
		vgpu_close(&slots);
	}
	return result;
}

__attribute__((noinline)) static enum vgpu_result
with_setup(struct vgpu_process *process, struct vgpu_error *error,
	   enum vgpu_result (*locked)(struct vgpu_process *, struct vgpu_error *))
{
	enum vgpu_result result;

	if (!process)
		return vgpu_fail(error, VGPU_SYSTEM, ENOMEM, "");
	result = vgpu_directory_find(error);
	if (result != VGPU_OK)
		return result;
	if (!vgpu_lock(&process->setup))
		return vgpu_fail(error, VGPU_SYSTEM, EDEADLK, "");
	result = locked(process, error);
	vgpu_unlock(&process->setup);
	return result;
}

enum vgpu_result vgpu_attach(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_attached(process) ? VGPU_OK
						    : with_setup(process, error, attach_locked);
}

enum vgpu_result vgpu_peek(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();

	return process && vgpu_is_mapped(process) ? VGPU_OK
						  : with_setup(process, error, peek_locked);
}

enum vgpu_result vgpu_attach_again(struct vgpu_process *process)
{
	if (!vgpu_lock(&process->setup))
		return VGPU_SYSTEM;
	if (process->attached &&
	    vgpu_slot_generation(vgpu_view_slot(&process->view, process->owner.slot)) !=
		process->owner.generation)
		(void)set_attached(process, false);
	vgpu_unlock(&process->setup);
	return vgpu_attach(NULL);
}
