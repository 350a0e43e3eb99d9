/*
 * region.h's functions: the one place where grant, region, slots and this process meet.
 *
 * Attaching happens under the process's setup lock; reserving under one card's. The descriptor that
 * holds our slot's lock is used for nothing else: whoever looks for the dead opens the region
 * afresh, for a program may close or reuse any number it did not open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "grant.h"
#include "process.h"
#include "region_file.h"
#include "slots.h"
#include "step.h"
#include "vgpu/region.h"

#define REAP_PERIOD_NS UINT64_C(1000000)
#define ANCHOR_BYTES   4096

/* Decided once; a fork child inherits the decision. */
static struct {
	struct vgpu_lock lock;
	enum { UNDECIDED, NONE, FOUND } state;
	char path[200];
} directory;

static enum vgpu_result fail(struct vgpu_error *error, enum vgpu_result result, int os_errno,
			     const char *path)
{
	if (error) {
		error->result = result;
		error->os_errno = os_errno;
		snprintf(error->path, sizeof(error->path), "%s", path);
	}
	return result;
}

/* Where the container's directory exists, in whatever state, the environment has no say. */
static enum vgpu_result find_directory(struct vgpu_error *error)
{
	struct vgpu_file file;
	const char *path = VGPU_CONTAINER_DIR;

	if (!vgpu_file_at(path, &file) && errno == ENOENT) {
		path = getenv(VGPU_ENV_DIR);
		if (!path || !path[0]) {
			__atomic_store_n(&directory.state, NONE, __ATOMIC_RELEASE);
			return VGPU_OK;
		}
	}
	if (strlen(path) >= sizeof(directory.path))
		return fail(error, VGPU_GRANT_MISSING, ENAMETOOLONG, path);
	strcpy(directory.path, path);
	__atomic_store_n(&directory.state, FOUND, __ATOMIC_RELEASE);
	return VGPU_OK;
}

static enum vgpu_result decide_directory(struct vgpu_error *error)
{
	enum vgpu_result result = VGPU_OK;

	if (__atomic_load_n(&directory.state, __ATOMIC_ACQUIRE) == UNDECIDED) {
		vgpu_lock(&directory.lock);
		if (directory.state == UNDECIDED)
			result = find_directory(error);
		vgpu_unlock(&directory.lock);
	}
	if (result != VGPU_OK)
		return result;
	return directory.state == NONE ? fail(error, VGPU_UNMANAGED, 0, "") : VGPU_OK;
}

static void path_of(const char *file, char path[256])
{
	snprintf(path, 256, "%s/%s", directory.path, file);
}

/* The region afresh, through a description of one's own, if it still is the one that is mapped. */
static enum vgpu_result reopen(const struct vgpu_process *process, int *fd, int *os_errno)
{
	struct vgpu_file file;
	char path[256];
	enum vgpu_result result;

	path_of(VGPU_FILE_REGION, path);
	result =
	    vgpu_region_open(path, vgpu_grant_id(), vgpu_grant_card_count(), fd, &file, os_errno);
	if (result != VGPU_OK ||
	    (file.device == process->region_device && file.inode == process->region_inode))
		return result;
	syscall(SYS_close, *fd);
	*fd = -1;
	return VGPU_REGION_INVALID;
}

static enum vgpu_result map_region(struct vgpu_process *process, const char *path, int *os_errno)
{
	struct vgpu_file file;
	int fd;
	enum vgpu_result result =
	    vgpu_region_open(path, vgpu_grant_id(), vgpu_grant_card_count(), &fd, &file, os_errno);

	if (result != VGPU_OK)
		return result;
	result = vgpu_region_map(fd, vgpu_grant_card_count(), &process->view, os_errno);
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
	char path[256];
	int os_errno = 0;
	enum vgpu_result result;

	path_of(VGPU_FILE_GRANT, path);
	result = vgpu_grant_load(path, &os_errno);
	if (result != VGPU_OK)
		return fail(error, result, os_errno, path);
	path_of(VGPU_FILE_REGION, path);
	if (!process->mapped)
		result = map_region(process, path, &os_errno);
	return result == VGPU_OK ? VGPU_OK : fail(error, result, os_errno, path);
}

static void lock_cards(struct vgpu_process *process)
{
	for (int card = 0; card < VGPU_MAX_CARDS; card++)
		vgpu_lock(&process->cards[card].lock);
}

static void unlock_cards(struct vgpu_process *process)
{
	for (int card = 0; card < VGPU_MAX_CARDS; card++)
		vgpu_unlock(&process->cards[card].lock);
}

static void set_attached(struct vgpu_process *process, bool attached)
{
	lock_cards(process);
	__atomic_store_n(&process->attached, attached, __ATOMIC_RELEASE);
	unlock_cards(process);
}

/*
 * What we held before somebody took us for dead is held still; the limit was checked then. The
 * caller holds the card's lock, or the slot is not in use yet.
 */
static void recharge(struct vgpu_process *process, int card)
{
	uint64_t held_bytes = process->cards[card].held_bytes;
	uint64_t charged_bytes =
	    vgpu_counter_charged_bytes(&process->view, card, process->owner.slot);

	if (held_bytes > charged_bytes)
		vgpu_counter_charge(&process->view, card, &process->owner,
				    held_bytes - charged_bytes, VGPU_NO_LIMIT);
}

static bool reap_slots(struct vgpu_process *process, const struct vgpu_slots *slots,
		       const struct vgpu_owner *except, bool attaching)
{
	bool any = vgpu_slots_reap(slots, except, attaching);

	if (any)
		__atomic_store_n(&process->last_drop_ns, vgpu_now_ns(), __ATOMIC_RELAXED);
	return any;
}

static void drop_anchor(struct vgpu_process *process)
{
	if (process->anchor)
		munmap(process->anchor, ANCHOR_BYTES);
	process->anchor = NULL;
}

static bool cast_anchor(struct vgpu_process *process, int fd)
{
	void *anchor;

	drop_anchor(process);
	anchor = mmap(NULL, ANCHOR_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
	if (anchor == MAP_FAILED)
		return false;
	madvise(anchor, ANCHOR_BYTES, MADV_DONTFORK);
	process->anchor = anchor;
	return true;
}

static enum vgpu_result take_slot(struct vgpu_process *process, int fd, struct vgpu_error *error)
{
	struct vgpu_slots slots = {&process->view, fd, &process->self};

	if (!cast_anchor(process, fd))
		return fail(error, VGPU_SYSTEM, errno, directory.path);
	reap_slots(process, &slots, NULL, true);
	VGPU_AT(ATTACH_REAPED);
	if (!vgpu_slots_claim(&slots, &process->owner)) {
		drop_anchor(process);
		return fail(error, VGPU_NO_SLOT, 0, directory.path);
	}
	for (int card = 0; card < process->view.card_count; card++)
		recharge(process, card);
	return VGPU_OK;
}

static enum vgpu_result attach_locked(struct vgpu_process *process, struct vgpu_error *error)
{
	char path[256];
	int fd, os_errno = 0;
	enum vgpu_result result = look_locked(process, error);

	if (result != VGPU_OK)
		return result;
	result = reopen(process, &fd, &os_errno);
	path_of(VGPU_FILE_REGION, path);
	if (result != VGPU_OK)
		return fail(error, result, os_errno, path);
	VGPU_AT(ATTACH_OPENED);
	result = take_slot(process, fd, error);
	syscall(SYS_close, fd);
	if (result == VGPU_OK)
		set_attached(process, true);
	VGPU_AT(ATTACH_DONE);
	return result;
}

static bool is_attached(const struct vgpu_process *process)
{
	return __atomic_load_n(&process->attached, __ATOMIC_ACQUIRE);
}

static bool is_mapped(const struct vgpu_process *process)
{
	return __atomic_load_n(&process->mapped, __ATOMIC_ACQUIRE);
}

enum vgpu_result vgpu_attach(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();
	enum vgpu_result result;

	if (!process)
		return fail(error, VGPU_SYSTEM, ENOMEM, "");
	if (is_attached(process))
		return VGPU_OK;
	result = decide_directory(error);
	if (result != VGPU_OK)
		return result;
	vgpu_lock(&process->setup);
	if (!process->attached)
		result = attach_locked(process, error);
	vgpu_unlock(&process->setup);
	return result;
}

enum vgpu_result vgpu_peek(struct vgpu_error *error)
{
	struct vgpu_process *process = vgpu_process();
	enum vgpu_result result;

	if (!process)
		return fail(error, VGPU_SYSTEM, ENOMEM, "");
	if (is_mapped(process))
		return VGPU_OK;
	result = decide_directory(error);
	if (result != VGPU_OK)
		return result;
	vgpu_lock(&process->setup);
	result = look_locked(process, error);
	vgpu_unlock(&process->setup);
	return result;
}

void vgpu_detach(void)
{
	struct vgpu_process *process = vgpu_process();
	struct vgpu_slots slots;
	int os_errno;

	if (!process || !is_attached(process))
		return;
	vgpu_lock(&process->setup);
	set_attached(process, false);
	slots = (struct vgpu_slots){&process->view, -1, &process->self};
	vgpu_slots_drop(&slots, &process->owner);
	VGPU_AT(DETACH_DROPPED);
	drop_anchor(process);
	VGPU_AT(DETACH_UNLOCKED);
	if (reopen(process, &slots.fd, &os_errno) == VGPU_OK) {
		vgpu_slots_free(&slots, &process->owner);
		syscall(SYS_close, slots.fd);
	}
	for (int card = 0; card < VGPU_MAX_CARDS; card++)
		process->cards[card].held_bytes = 0;
	VGPU_AT(DETACH_DONE);
	vgpu_unlock(&process->setup);
}

/* Look for the dead, if nobody here did so just now. True where some charge was dropped. */
static bool reap(struct vgpu_process *process)
{
	uint64_t now_ns = vgpu_now_ns();
	uint64_t last_ns = __atomic_load_n(&process->last_reap_ns, __ATOMIC_RELAXED);
	struct vgpu_owner self = {UINT32_MAX, 0};
	struct vgpu_slots slots = {&process->view, -1, &process->self};
	int os_errno;
	bool any;

	if (now_ns - last_ns < REAP_PERIOD_NS ||
	    !__atomic_compare_exchange_n(&process->last_reap_ns, &last_ns, now_ns, false,
					 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return false;
	if (reopen(process, &slots.fd, &os_errno) != VGPU_OK)
		return false;
	if (is_attached(process))
		self = process->owner;
	any = reap_slots(process, &slots, &self, false);
	syscall(SYS_close, slots.fd);
	return any;
}

bool vgpu_dropped_within(uint64_t span_ns)
{
	struct vgpu_process *process = vgpu_process();
	uint64_t last_ns = process ? __atomic_load_n(&process->last_drop_ns, __ATOMIC_RELAXED) : 0;

	return last_ns && vgpu_now_ns() - last_ns < span_ns;
}

int vgpu_card_of_uuid(const uint8_t uuid[16])
{
	return vgpu_grant_find(uuid);
}

uint64_t vgpu_limit_bytes(int card)
{
	return vgpu_grant_limit_bytes(card);
}

uint32_t vgpu_core_percent(int card)
{
	return vgpu_grant_core_percent(card);
}

uint64_t vgpu_used_bytes(int card)
{
	struct vgpu_process *process = vgpu_process();
	uint64_t held_bytes;

	if (!process || !is_mapped(process) || card < 0 || card >= process->view.card_count)
		return 0;
	held_bytes = __atomic_load_n(&process->cards[card].held_bytes, __ATOMIC_RELAXED);
	if (vgpu_counter_used_bytes(&process->view, card) != held_bytes)
		reap(process);
	return vgpu_counter_used_bytes(&process->view, card);
}

/* One try under the card's lock: add (bytes > 0 and adding) or take off. VGPU_LOST: attach anew
 * first. */
static enum vgpu_applied change(struct vgpu_process *process, int card, bool adding, uint64_t bytes)
{
	struct vgpu_process_card *own = &process->cards[card];
	enum vgpu_applied applied = VGPU_LOST;

	vgpu_lock(&own->lock);
	if (process->attached) {
		recharge(process, card);
		applied = adding
			      ? vgpu_counter_charge(&process->view, card, &process->owner, bytes,
						    vgpu_grant_limit_bytes(card))
			      : vgpu_counter_uncharge(&process->view, card, &process->owner, bytes);
		if (applied == VGPU_APPLIED && adding)
			__atomic_store_n(&own->held_bytes, own->held_bytes + bytes,
					 __ATOMIC_RELAXED);
		else if (applied == VGPU_APPLIED)
			__atomic_store_n(&own->held_bytes,
					 own->held_bytes > bytes ? own->held_bytes - bytes : 0,
					 __ATOMIC_RELAXED);
	}
	vgpu_unlock(&own->lock);
	return applied;
}

/* Somebody held us for dead (docs/adr/0002): take a new slot with what we hold. */
static enum vgpu_result attach_anew(struct vgpu_process *process)
{
	vgpu_lock(&process->setup);
	if (process->attached &&
	    __atomic_load_n(&vgpu_view_slot(&process->view, process->owner.slot)->generation,
			    __ATOMIC_ACQUIRE) != process->owner.generation)
		set_attached(process, false);
	vgpu_unlock(&process->setup);
	return vgpu_attach(NULL);
}

/* A lost slot is found out and replaced once or twice; a region that keeps losing it is broken. */
#define TRIES 3

static enum vgpu_result change_attached(struct vgpu_process *process, int card, bool adding,
					uint64_t bytes)
{
	for (int tries = 0; tries < TRIES; tries++) {
		enum vgpu_result result = vgpu_attach(NULL);

		if (result != VGPU_OK)
			return result;
		if (card < 0 || card >= process->view.card_count)
			return VGPU_OVER_LIMIT;
		switch (change(process, card, adding, bytes)) {
		case VGPU_APPLIED:
			return VGPU_OK;
		case VGPU_REFUSED:
			return VGPU_OVER_LIMIT;
		case VGPU_LOST:
			result = attach_anew(process);
			if (result != VGPU_OK)
				return result;
		}
	}
	return VGPU_SYSTEM;
}

enum vgpu_result vgpu_reserve(int card, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process();
	enum vgpu_result result;

	if (!process)
		return VGPU_SYSTEM;
	result = change_attached(process, card, true, bytes);
	if (result == VGPU_OVER_LIMIT && reap(process))
		result = change_attached(process, card, true, bytes);
	return result;
}

void vgpu_refund(int card, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process();

	if (process && is_attached(process))
		change_attached(process, card, false, bytes);
}
