/*
 * Uses the counter's words from parallel threads of one process. Each thread has a slot of its own,
 * as a process has, and takes no lock. The use must never exceed the limit. Each slot must have the
 * bytes that its thread holds. At the end, the use must be 0.
 *
 * usage: vgpu-counter-test THREADS ROUNDS
 */
#include "region/counter.h"
#include "test.h"
#include "vgpu/region.h"

enum { LIMIT_BYTES = 100, MOST_BYTES = 100, SLOT_STRIDE = 128 };

static struct vgpu_view view = {.gpu_count = 1,
				.slots_offset = sizeof(struct vgpu_region_header) +
						sizeof(struct vgpu_region_gpu),
				.slot_stride = SLOT_STRIDE};
static int rounds;

static void *own_slot(void *number)
{
	struct vgpu_owner owner = {(uint32_t)(uintptr_t)number, 2};
	uint64_t random = 88172645463325252ULL + owner.slot * 7919, held = 0;

	vgpu_view_slot(&view, owner.slot)->generation = owner.generation;
	for (int round = 0; round < rounds || held; round++) {
		uint64_t bytes = held ? held : 1 + next_random(&random) % MOST_BYTES;
		bool applied = vgpu_counter_change(&view, 0, &owner, !held, bytes, LIMIT_BYTES) ==
			       VGPU_APPLIED;

		MUST(applied || !held);
		held = applied && !held ? bytes : 0;
		MUST(vgpu_counter_used_bytes(&view, 0) <= LIMIT_BYTES);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static _Alignas(64) char memory[(MOST_THREADS + 8) * SLOT_STRIDE];

	MUST(argc == 3 && view.slots_offset <= 8 * SLOT_STRIDE);
	view.base = memory;
	rounds = atoi(argv[2]);
	run_threads(atoi(argv[1]), own_slot);
	MUST(vgpu_counter_used_bytes(&view, 0) == 0);
	MUST(vgpu_view_gpu(&view, 0)->over_refund_count == 0);
	return 0;
}
