#include "region/shared_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "region/directory.h"
#include "region/grant.h"
#include "region/mapping.h"
#include "region/region_file.h"

#define LOCK_PAUSE_NS 1000000
#define LOCK_PAUSES   1000

_Static_assert(VGPU_ENVIRONMENT_MAX_GPUS >= VGPU_MAX_GPUS, "a grant's GPUs fit");

/* Lock the limits until the descriptor is closed. False: another process held the lock for a
 * second. */
static bool lock_limits(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = (off_t)VGPU_LOCK_LIMITS, .l_len = 1};

	for (int pauses = 0; pauses < LOCK_PAUSES; pauses++) {
		if (syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock) == 0)
			return true;
		vgpu_pause(LOCK_PAUSE_NS);
	}
	return false;
}

static bool no_process_runs(const struct vgpu_view *view)
{
	for (uint32_t number = 0; number < VGPU_MAX_SLOTS; number++) {
		const struct vgpu_region_slot *slot = vgpu_view_slot(view, number);

		if (!vgpu_slot_generation(slot))
			break;
		if (vgpu_slot_state(slot) != VGPU_SLOT_FREE)
			return false;
	}
	return true;
}

/* If no process holds a slot, end the limits that exited processes set. The GPUs' entries remain,
 * because processes that only query, without a slot, still use the entries' indexes. */
static void forget_limits(struct vgpu_process *process)
{
	struct vgpu_slots slots;

	if (vgpu_reopen(process, &slots, NULL) != VGPU_OK)
		return;
	vgpu_slots_reap(&slots, NULL, true);
	if (lock_limits(slots.fd) && no_process_runs(&process->view))
		for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++) {
			uint32_t *known = &vgpu_view_gpu(&process->view, gpu)->known;

			if (__atomic_load_n(known, __ATOMIC_RELAXED) == VGPU_GPU_LIMITED)
				__atomic_store_n(known, VGPU_GPU_NAMED, __ATOMIC_RELAXED);
		}
	vgpu_close(&slots);
}

static enum vgpu_result why_not(enum vgpu_result result)
{
	switch (result) {
	case VGPU_REGION_MISSING:
	case VGPU_REGION_READONLY:
		return VGPU_CACHE_UNUSABLE;
	case VGPU_REGION_INVALID:
		return VGPU_CACHE_INVALID;
	default:
		return result;
	}
}

/* In a setuid program, make no file at a path from a variable, because the unprivileged user chose
 * the path. */
static enum vgpu_result make(const char *path, int *os_errno)
{
	if (!getauxval(AT_SECURE) || strcmp(path, VGPU_SHARED_CACHE_PATH) == 0)
		return vgpu_region_make(path, os_errno);
	*os_errno = EPERM;
	return VGPU_REGION_MISSING;
}

enum vgpu_result vgpu_limits_poll(struct vgpu_process *process, struct vgpu_error *error)
{
	char path[VGPU_PATH_BYTES];
	int os_errno = 0;
	enum vgpu_result result;

	if (process->mapped)
		return VGPU_OK;
	vgpu_grant_assume(VGPU_ENVIRONMENT_ID, VGPU_ENVIRONMENT_MAX_GPUS);
	vgpu_directory_path(VGPU_FILE_REGION, path);
	result = vgpu_map_region(process, path, &os_errno);
	if (result == VGPU_REGION_MISSING) {
		result = make(path, &os_errno);
		if (result == VGPU_OK)
			result = vgpu_map_region(process, path, &os_errno);
	}
	if (result != VGPU_OK)
		return vgpu_fail(error, why_not(result), os_errno, path);
	forget_limits(process);
	return VGPU_OK;
}

/* The GPU's entry, or else the first free one. The caller holds the lock of the limits. */
static int entry_of(const struct vgpu_view *view, const uint8_t uuid[16])
{
	int gpu = 0;

	for (; gpu < view->gpu_count; gpu++) {
		const struct vgpu_region_gpu *entry = vgpu_view_gpu(view, gpu);

		if (entry->known == VGPU_GPU_NEW || memcmp(entry->uuid, uuid, 16) == 0)
			return gpu;
	}
	return -1;
}

int vgpu_limits_register(const uint8_t uuid[16], int number)
{
	const struct vgpu_environment *environment = vgpu_directory_environment();
	struct vgpu_process *process = vgpu_process();
	struct vgpu_region_gpu *entry;
	struct vgpu_slots slots;
	int gpu = -1;

	number = vgpu_environment_number(environment, uuid, number);
	if (number < 0 || number >= VGPU_ENVIRONMENT_MAX_GPUS || !process ||
	    !vgpu_is_mapped(process) || vgpu_reopen(process, &slots, NULL) != VGPU_OK)
		return -1;
	if (lock_limits(slots.fd))
		gpu = entry_of(&process->view, uuid);
	if (gpu >= 0) {
		entry = vgpu_view_gpu(&process->view, gpu);
		if (entry->known != VGPU_GPU_LIMITED) {
			memcpy(entry->uuid, uuid, 16);
			entry->limit_bytes = environment->limits[number].bytes;
			entry->core_percent = environment->limits[number].core_percent;
			__atomic_store_n(&entry->known, VGPU_GPU_LIMITED, __ATOMIC_RELEASE);
		}
		vgpu_grant_add(gpu, uuid,
			       &(struct vgpu_grant_limits){
				   .limit_bytes = entry->limit_bytes,
				   .context_bytes = environment->context_bytes,
				   .core_percent = entry->core_percent,
			       });
	}
	vgpu_close(&slots);
	return gpu;
}
