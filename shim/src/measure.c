/* See measure.h. */
#include "measure.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "admission.h"
#include "hooks.h"
#include "lives.h"
#include "lock.h"
#include "openers.h"
#include "process.h"
#include "step.h"
#include "vgpu/region.h"

enum { CAPTURE_MODE_RELAXED = 2 };

const struct vgpu_bounds vgpu_code_taken = {0, INT64_C(1) << 30};
const struct vgpu_bounds vgpu_code_given = {-(INT64_C(1) << 30), 0};

#define TEARDOWN_NS UINT64_C(1000000000) /* how long the card may hold what the dead held */
#define PAUSE_NS    20000000
#define PAUSES	    60

#define WAIT_NS	      UINT64_C(1000000000) /* of one that measures for another to end */
#define WAIT_PAUSE_NS 50000

/* A card's account: what it holds beyond what this container is charged for. */
static struct account {
	struct vgpu_lock lock;
	struct vgpu_lock alone; /* taken under the lock, kept for the length of a driver call */
	struct vgpu_openers openers;
	int64_t reference_bytes; /* when the first of them opened */
	bool mixed;		 /* some of different contexts have been open at once since */
	/* A first context that may be charged too much; none: context 0, which is read and written
	 * by atomic operations alone, since who only asks whether there is one takes no lock. */
	struct vgpu_place provisional;
	int64_t provisional_bytes;
} accounts[VGPU_MOST_CARDS];

/* A call of the driver's that makes another of these is part of the first. */
static __thread bool measuring;

static uint32_t provisional_context(const struct account *account)
{
	return __atomic_load_n(&account->provisional.context, __ATOMIC_RELAXED);
}

/* The caller holds the account's lock. */
static void set_provisional(struct account *account, struct vgpu_place place)
{
	account->provisional.card = place.card;
	__atomic_store_n(&account->provisional.context, place.context, __ATOMIC_RELAXED);
}

bool vgpu_measuring(void)
{
	return measuring;
}

/* In a context on the card. The question must not end a capture that another thread began. */
static bool read_account(int card, int64_t *beyond_bytes)
{
	size_t free_bytes = 0, total_bytes = 0;
	int mode = CAPTURE_MODE_RELAXED;
	bool exchanged = real_cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
	CUresult result = real_cuMemGetInfo_v2(&free_bytes, &total_bytes);

	if (exchanged)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
	*beyond_bytes = (int64_t)(total_bytes - free_bytes) - (int64_t)vgpu_used_bytes(card);
	return result == CUDA_SUCCESS;
}

static int64_t bounded(int64_t bytes, struct vgpu_bounds bounds)
{
	if (bytes < bounds.least_bytes)
		return bounds.least_bytes;
	return bytes > bounds.most_bytes ? bounds.most_bytes : bytes;
}

/* The caller holds the account's lock. */
static int64_t charge_beyond(struct vgpu_place place, int64_t reserved_bytes, uint64_t most_bytes)
{
	int64_t beyond_bytes;

	if (!read_account(place.card, &beyond_bytes))
		return 0;
	beyond_bytes =
	    bounded(beyond_bytes + reserved_bytes, (struct vgpu_bounds){0, (int64_t)most_bytes});
	vgpu_charge_measured(place, beyond_bytes);
	return beyond_bytes;
}

/* Give back what the card no longer holds of a context's provisional charge; the caller holds the
 * account's lock. */
static bool correct(struct account *account)
{
	struct vgpu_place place = account->provisional;
	int64_t beyond_bytes, back_bytes;

	if (!place.context)
		return false;
	if (!vgpu_dropped_within(place.card, TEARDOWN_NS))
		set_provisional(account, (struct vgpu_place){0});
	if (!read_account(place.card, &beyond_bytes) || beyond_bytes >= 0)
		return false;
	back_bytes = bounded(beyond_bytes, (struct vgpu_bounds){-account->provisional_bytes, 0});
	account->provisional_bytes += back_bytes;
	vgpu_charge_measured(place, back_bytes);
	return back_bytes != 0;
}

bool vgpu_correct_measured(int card)
{
	struct account *account = &accounts[card];
	CUcontext context;
	bool corrected = false;

	if (!provisional_context(account))
		return false;
	context = vgpu_place_context_on(card);
	if (!context || real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	for (int pauses = 0; !corrected && provisional_context(account) && pauses < PAUSES;
	     pauses++) {
		const struct timespec pause = {.tv_nsec = pauses ? PAUSE_NS : 0};
		syscall(SYS_nanosleep, &pause, NULL);
		if (!vgpu_lock(&account->lock))
			break;
		corrected = correct(account);
		vgpu_unlock(&account->lock);
	}
	(void)real_cuCtxPopCurrent_v2(&context);
	return corrected;
}

/* With the account's lock. */
static bool someone_is_alone(struct account *account)
{
	if (vgpu_lock_is_mine(&account->alone))
		return false;
	if (!vgpu_trylock(&account->alone))
		return true;
	vgpu_unlock(&account->alone);
	return false;
}

/* Who measures alone, or in another context, is waited for, a while. True: the lock is held. */
static bool enter_beside(struct account *account, uint32_t context)
{
	const struct timespec pause = {.tv_nsec = WAIT_PAUSE_NS};
	uint64_t since_ns = vgpu_now_ns();

	for (;;) {
		if (!vgpu_lock(&account->lock))
			return false;
		if (!someone_is_alone(account) &&
		    !vgpu_openers_elsewhere(&account->openers, context))
			return true;
		if (vgpu_now_ns() - since_ns > WAIT_NS)
			return true;
		vgpu_unlock(&account->lock);
		syscall(SYS_nanosleep, &pause, NULL);
	}
}

/* When nobody new can come, those whose windows are open are waited for, a while. */
bool vgpu_alone_enter(int card)
{
	const struct timespec pause = {.tv_nsec = WAIT_PAUSE_NS};
	uint64_t since_ns = vgpu_now_ns();
	bool taken = false, others = true;

	if (card < 0 || measuring || vgpu_lock_is_mine(&accounts[card].alone))
		return false;
	while (!taken || others) {
		struct account *account = &accounts[card];

		if (!vgpu_lock(&account->lock))
			break;
		taken = taken || vgpu_trylock(&account->alone);
		others = vgpu_openers_any(&account->openers);
		vgpu_unlock(&account->lock);
		if (vgpu_now_ns() - since_ns > WAIT_NS)
			break;
		if (!taken || others)
			syscall(SYS_nanosleep, &pause, NULL);
	}
	return taken;
}

void vgpu_alone_leave(int card, bool entered)
{
	if (entered)
		vgpu_unlock(&accounts[card].alone);
}

static void open_here(struct vgpu_window *window)
{
	struct account *account = &accounts[window->place.card];
	uint32_t context = window->place.context;
	int64_t beyond_bytes;

	if (!enter_beside(account, context))
		return;
	if (!window->reserved)
		correct(account);
	window->open = read_account(window->place.card, &beyond_bytes);
	if (window->open) {
		if (!vgpu_openers_any(&account->openers)) {
			account->reference_bytes = beyond_bytes;
			account->mixed = false;
		}
		account->mixed |= vgpu_openers_elsewhere(&account->openers, context);
		vgpu_openers_add(&account->openers, context);
	}
	vgpu_unlock(&account->lock);
	measuring = window->open;
	VGPU_AT(WINDOW_OPENED);
}

void vgpu_window_open(struct vgpu_window *window)
{
	*window = (struct vgpu_window){.place.card = VGPU_CARD_UNMANAGED};
	if (!measuring && vgpu_place_current(&window->place) == CUDA_SUCCESS &&
	    window->place.card >= 0)
		open_here(window);
}

void vgpu_window_open_by(struct vgpu_window *window, struct vgpu_place place, CUcontext context)
{
	*window = (struct vgpu_window){.place = place, .reserved = true};
	if (measuring || place.card < 0 || !context ||
	    real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return;
	open_here(window);
	(void)real_cuCtxPopCurrent_v2(&context);
}

/* Whose it is of several contexts nobody can tell: what the one took must not go with the other. */
static void charge_window(const struct account *account, struct vgpu_place place, int64_t bytes)
{
	if (account->mixed && bytes > 0)
		place.context = 0;
	vgpu_charge_measured(place, bytes);
}

/* Charging brings the account back towards the reference: others see what is left. */
int64_t vgpu_window_close(struct vgpu_window *window, struct vgpu_bounds bounds)
{
	struct account *account = &accounts[window->place.card < 0 ? 0 : window->place.card];
	int64_t beyond_bytes, taken_bytes = 0;

	if (!window->open)
		return 0;
	VGPU_AT(WINDOW_CALLED);
	measuring = window->open = false;
	if (!vgpu_lock(&account->lock))
		return 0;
	if (read_account(window->place.card, &beyond_bytes)) {
		taken_bytes = bounded(beyond_bytes - account->reference_bytes, bounds);
		charge_window(account, window->place, taken_bytes);
	}
	vgpu_openers_remove(&account->openers);
	vgpu_unlock(&account->lock);
	VGPU_AT(WINDOW_CHARGED);
	return taken_bytes;
}

void vgpu_window_drop(struct vgpu_window *window)
{
	if (!window->open)
		return;
	measuring = window->open = false;
	if (!vgpu_lock(&accounts[window->place.card].lock))
		return;
	vgpu_openers_remove(&accounts[window->place.card].openers);
	vgpu_unlock(&accounts[window->place.card].lock);
}

bool vgpu_took_too_much(const struct vgpu_window *window, int64_t taken_bytes)
{
	int card = window->place.card;

	return taken_bytes > 0 && vgpu_used_bytes(card) > vgpu_limit_bytes(card);
}

int64_t vgpu_charge_unexplained(struct vgpu_place place, uint64_t reserved_bytes,
				uint64_t most_bytes)
{
	struct account *account = &accounts[place.card];
	int64_t own_bytes = 0;

	if (!vgpu_lock(&account->lock))
		return 0;
	own_bytes = charge_beyond(place, (int64_t)reserved_bytes, most_bytes);
	if (vgpu_dropped_within(place.card, TEARDOWN_NS)) {
		set_provisional(account, place);
		account->provisional_bytes = own_bytes;
	}
	vgpu_unlock(&account->lock);
	return own_bytes;
}

/* Within the lock, since what is charged to no context in particular is charged within it. */
void vgpu_measured_ended(uint32_t context)
{
	for (int card = 0; card < VGPU_MOST_CARDS; card++) {
		struct account *account = &accounts[card];

		if (!vgpu_lock(&account->lock))
			continue;
		if (provisional_context(account) == context)
			set_provisional(account, (struct vgpu_place){0});
		vgpu_forget_unowned(card);
		vgpu_unlock(&account->lock);
	}
}
