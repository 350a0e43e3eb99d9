/*
 * Reserves, refunds, and reports limits and use. These functions of region.h are called often.
 *
 * A change of a charge holds the GPU's lock, and uses the slot that attach.c took. Before a refusal
 * or a report, exited processes are searched for.
 */
#include "region/directory.h"
#include "region/grant.h"
#include "region/mapping.h"
#include "region/shared_limits.h"

#define REAP_PERIOD_NS UINT64_C(1000000)
#define REPORT_REST    20 /* searches for reports take at most 1/20 of the time */
#define REAP_PAUSE_NS  (REAP_PERIOD_NS / 4)
#define REAP_PAUSES    400 /* together longer than a search of all slots takes */

/* If the region's file cannot be opened, no lock can be tested. Then only processes whose pid is
 * free count as exited. Their charges are dropped now. Their slots are freed later, by a process
 * that can open the file. */
static void reap_exited(struct vgpu_process *process, enum vgpu_search search)
{
	struct vgpu_owner self = {UINT32_MAX, 0};
	struct vgpu_slots slots;

	(void)vgpu_reopen(process, &slots, NULL);
	if (vgpu_is_attached(process))
		self = process->owner;
	vgpu_slots_reap(&slots, &self, search);
	vgpu_close(&slots);
}

/* Search for exited processes. False: not searched, because a thread of this process began a search
 * less than REAP_PERIOD_NS ago. */
static bool reap(struct vgpu_process *process, enum vgpu_search search)
{
	uint64_t now_ns = vgpu_now_ns();
	uint64_t last_ns = __atomic_load_n(&process->last_reap_ns, __ATOMIC_RELAXED);

	if (now_ns - last_ns < REAP_PERIOD_NS ||
	    !__atomic_compare_exchange_n(&process->last_reap_ns, &last_ns, now_ns, false,
					 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return false;
	reap_exited(process, search);
	__atomic_store_n(&process->reaped_ns, now_ns, __ATOMIC_RELEASE);
	__atomic_store_n(&process->reap_took_ns, vgpu_now_ns() - now_ns, __ATOMIC_RELAXED);
	return true;
}

/* Search less often if searches take long. With very many processes a report may be some ms old. */
static void reap_for_report(struct vgpu_process *process)
{
	uint64_t since_ns = vgpu_now_ns() - __atomic_load_n(&process->reaped_ns, __ATOMIC_RELAXED);

	if (since_ns >= REPORT_REST * __atomic_load_n(&process->reap_took_ns, __ATOMIC_RELAXED))
		reap(process, VGPU_SEARCH_QUICK);
}

/* A refusal must not be caused by a process that has exited already. So wait a millisecond or two,
 * until some thread has ended a search that began after this call. */
static void reap_since_now(struct vgpu_process *process)
{
	uint64_t since_ns = vgpu_now_ns();

	for (int pauses = 0; pauses < REAP_PAUSES && !reap(process, VGPU_SEARCH_THOROUGH);
	     pauses++) {
		if (__atomic_load_n(&process->reaped_ns, __ATOMIC_ACQUIRE) >= since_ns)
			return;
		vgpu_pause(REAP_PAUSE_NS);
	}
}

uint64_t vgpu_last_exit_ns(int gpu)
{
	struct vgpu_process *process = vgpu_process_with(gpu);
	const struct vgpu_region_header *header;
	uint64_t last_ns;

	if (!process)
		return 0;
	header = (const struct vgpu_region_header *)process->view.base;
	last_ns =
	    __atomic_load_n(&vgpu_view_gpu(&process->view, gpu)->last_drop_ns, __ATOMIC_RELAXED);
	return header->created_ns > last_ns ? header->created_ns : last_ns;
}

int vgpu_gpu_of_uuid(const uint8_t uuid[16], int number)
{
	int gpu = vgpu_grant_find(uuid);

	if (!vgpu_directory_environment())
		return gpu;
	if (gpu < 0)
		gpu = vgpu_limits_register(uuid, number);
	/* If the environment limits only compute, memory is counted all the same, with a limit
	 * beyond any GPU's size. */
	if (gpu >= 0 && vgpu_grant_read(gpu, limit_bytes) == VGPU_NO_LIMIT &&
	    vgpu_core_percent(gpu) % 100 == 0)
		return VGPU_GPU_UNMANAGED;
	return gpu;
}

uint64_t vgpu_limit_bytes(int gpu)
{
	return vgpu_grant_read(gpu, limit_bytes);
}

uint32_t vgpu_core_percent(int gpu)
{
	return vgpu_grant_read(gpu, core_percent);
}

uint64_t vgpu_context_bytes(int gpu, bool first)
{
	return vgpu_grant_read(gpu, context_bytes) + (first ? vgpu_grant_read(gpu, code_bytes) : 0);
}

bool vgpu_managed_is_charged(int gpu)
{
	return !(vgpu_grant_read(gpu, flags) & VGPU_GRANT_MANAGED_FREE);
}

uint64_t vgpu_used_bytes(int gpu)
{
	struct vgpu_process *process = vgpu_process_with(gpu);
	uint64_t held_bytes, float_bytes, charged_bytes;

	if (!process)
		return 0;
	held_bytes = __atomic_load_n(&process->gpus[gpu].held_bytes, __ATOMIC_RELAXED);
	if (vgpu_counter_used_bytes(&process->view, gpu) != held_bytes)
		reap_for_report(process);
	float_bytes = __atomic_load_n(&process->gpus[gpu].float_bytes, __ATOMIC_RELAXED);
	charged_bytes = vgpu_counter_used_bytes(&process->view, gpu);
	return charged_bytes - (charged_bytes < float_bytes ? charged_bytes : float_bytes) +
	       vgpu_grant_read(gpu, overhead_bytes);
}

enum change {
	ADD,	    /* if the limit allows it */
	ADD_IN_USE, /* regardless of the limit */
	TAKE_OFF,
};

/* Change the process's charge. The caller holds the GPU's lock. A refund may overtake the charge of
 * the same memory by another thread, so what exceeds the charge is left for later. VGPU_LOST:
 * attach again and retry. */
static enum vgpu_applied apply_locked(struct vgpu_process *process, int gpu, enum change change,
				      uint64_t bytes)
{
	struct vgpu_process_gpu *own = &process->gpus[gpu];
	uint64_t limit_bytes =
	    change == ADD ? vgpu_grant_read(gpu, chargeable_bytes) : VGPU_NO_LIMIT;
	uint64_t rest_bytes = 0;
	enum vgpu_applied applied;

	if (!process->attached)
		return VGPU_LOST;
	vgpu_recharge(process, gpu);
	if (change == TAKE_OFF && bytes > own->held_bytes)
		rest_bytes = bytes - own->held_bytes;
	bytes -= rest_bytes;
	applied = vgpu_counter_change(&process->view, gpu, &process->owner, change != TAKE_OFF,
				      bytes, limit_bytes);
	if (applied != VGPU_APPLIED)
		return applied;
	__atomic_store_n(&own->held_bytes,
			 own->held_bytes + (change == TAKE_OFF ? 0 - bytes : bytes),
			 __ATOMIC_RELAXED);
	if (rest_bytes)
		__atomic_fetch_sub(&own->late_bytes, (int64_t)rest_bytes, __ATOMIC_RELAXED);
	return applied;
}

static void apply_late(struct vgpu_process *process, int gpu)
{
	int64_t *late = &process->gpus[gpu].late_bytes, bytes;

	if (__builtin_expect(!__atomic_load_n(late, __ATOMIC_RELAXED), 1))
		return;
	bytes = __atomic_exchange_n(late, 0, __ATOMIC_RELAXED);
	if (apply_locked(process, gpu, bytes > 0 ? ADD_IN_USE : TAKE_OFF,
			 (uint64_t)(bytes > 0 ? bytes : -bytes)) != VGPU_APPLIED)
		__atomic_fetch_add(late, bytes, __ATOMIC_RELAXED);
}

/* A process may lose its slot once or twice. If it loses one more often, the region is broken. */
#define TRIES 3

/* If the GPU's lock is not available, a reservation is refused. Any other change is left to the
 * lock's holder. */
static enum vgpu_result change_attached(struct vgpu_process *process, int gpu, enum change change,
					uint64_t bytes)
{
	enum vgpu_applied applied;
	struct vgpu_process_gpu *own;

	for (int tries = 0; process && tries < TRIES; tries++) {
		enum vgpu_result result = vgpu_is_attached(process) ? VGPU_OK : vgpu_attach(NULL);

		if (result != VGPU_OK)
			return result;
		if (gpu < 0 || gpu >= process->view.gpu_count)
			return VGPU_OVER_LIMIT;
		own = &process->gpus[gpu];
		if (!vgpu_lock(&own->lock)) {
			if (change == ADD)
				return VGPU_OVER_LIMIT;
			__atomic_fetch_add(&own->late_bytes,
					   change == TAKE_OFF ? -(int64_t)bytes : (int64_t)bytes,
					   __ATOMIC_RELAXED);
			return VGPU_OK;
		}
		apply_late(process, gpu);
		applied = apply_locked(process, gpu, change, bytes);
		apply_late(process, gpu);
		vgpu_unlock(&own->lock);
		if (applied != VGPU_LOST)
			return applied == VGPU_APPLIED ? VGPU_OK : VGPU_OVER_LIMIT;
		result = vgpu_attach_again(process);
		if (result != VGPU_OK)
			return result;
	}
	return VGPU_SYSTEM;
}

/* If the GPU's lock is not available, the next change states the float. */
void vgpu_set_float(int gpu, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process_with(gpu);

	if (!process)
		return;
	__atomic_store_n(&process->gpus[gpu].float_bytes, bytes, __ATOMIC_RELEASE);
	if (!vgpu_lock(&process->gpus[gpu].lock))
		return;
	if (process->attached)
		vgpu_recharge(process, gpu);
	vgpu_unlock(&process->gpus[gpu].lock);
}

bool vgpu_fits(int gpu, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process_with(gpu);
	uint64_t chargeable_bytes = vgpu_grant_read(gpu, chargeable_bytes), used_bytes;

	used_bytes = process ? vgpu_counter_used_bytes(&process->view, gpu) : UINT64_MAX;
	return used_bytes <= chargeable_bytes && bytes <= chargeable_bytes - used_bytes;
}

bool vgpu_may_ever_fit(int gpu, uint64_t bytes)
{
	return bytes <= vgpu_grant_read(gpu, chargeable_bytes);
}

enum vgpu_result vgpu_reserve(int gpu, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process();
	enum vgpu_result result = change_attached(process, gpu, ADD, bytes);

	if (result != VGPU_OVER_LIMIT || !vgpu_may_ever_fit(gpu, bytes))
		return result;
	reap_since_now(process);
	return vgpu_fits(gpu, bytes) ? change_attached(process, gpu, ADD, bytes) : result;
}

void vgpu_refund(int gpu, uint64_t bytes)
{
	struct vgpu_process *process = vgpu_process();

	if (process && vgpu_is_attached(process))
		change_attached(process, gpu, TAKE_OFF, bytes);
}

enum vgpu_result vgpu_charge(int gpu, uint64_t bytes)
{
	return change_attached(vgpu_process(), gpu, ADD_IN_USE, bytes);
}
