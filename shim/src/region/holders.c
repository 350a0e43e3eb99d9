/* Lists the container's processes that hold memory, from the region's slots. Processes of other PID
 * namespaces are left out, because they have no pid in this process's namespace. */
#include "region/mapping.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_own(const struct vgpu_process *process, uint32_t number, uint64_t generation)
{
	return vgpu_is_attached(process) && process->owner.slot == number &&
	       process->owner.generation == generation;
}

/* Read one slot. The generation is read before and after, so that all data is of one owner. False:
 * the slot has no process to list. */
static bool name_holder(const struct vgpu_process *process, int gpu, uint32_t number,
			struct vgpu_holder *holder)
{
	const struct vgpu_region_slot *slot = vgpu_view_slot(&process->view, number);
	uint64_t generation = vgpu_slot_generation(slot);
	struct vgpu_identity identity = vgpu_slots_holder(slot);
	uint64_t float_bytes = __atomic_load_n(
	    &vgpu_view_slot_gpu(&process->view, number, gpu)->float_bytes, __ATOMIC_RELAXED);

	if (vgpu_slot_state(slot) != VGPU_SLOT_LIVE)
		return false;
	holder->bytes = vgpu_counter_charged_bytes(&process->view, gpu, number);
	holder->bytes -= holder->bytes < float_bytes ? holder->bytes : float_bytes;
	holder->pid = identity.pid;
	if (!holder->bytes)
		return false;
	if (is_own(process, number, generation))
		holder->pid = (uint32_t)syscall(SYS_getpid);
	else if (vgpu_identity_presence(&process->self, &identity) != VGPU_PRESENT)
		return false;
	return vgpu_slot_generation(slot) == generation;
}

bool vgpu_next_holder(int gpu, uint32_t *cursor, struct vgpu_holder *holder)
{
	struct vgpu_process *process = vgpu_process_with(gpu);

	while (process && *cursor < VGPU_MAX_SLOTS) {
		uint32_t number = (*cursor)++;

		if (!vgpu_slot_generation(vgpu_view_slot(&process->view, number)))
			return false; /* this slot and all above were never taken */
		if (name_holder(process, gpu, number, holder))
			return true;
	}
	return false;
}
