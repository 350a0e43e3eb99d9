/*
 * The counter's words under true parallelism in one process: each thread is a slot of its own, as
 * processes are, without the lock that a process's threads share. Never over the limit, each slot
 * as its owner counts it, and 0 at the end.
 *
 * usage: vgpu-counter-test THREADS ROUNDS
 */
#include <pthread.h>

#include "region/counter.h"
#include "test.h"
#include "vgpu/region.h"

enum { MOST_THREADS = 64, LIMIT_BYTES = 1000, MOST_BYTES = 100 };

static struct vgpu_view view;
static int rounds;

static void *owner_body(void *argument)
{
	struct vgpu_owner owner = {*(uint32_t *)argument, 2};
	uint64_t random = 88172645463325252ULL + owner.slot * 7919, held = 0;

	for (int round = 0; round < rounds; round++) {
		uint64_t bytes = 1 + next_random(&random) % MOST_BYTES;
		if (held) {
			MUST(vgpu_counter_change(&view, 0, &owner, false, held, LIMIT_BYTES) ==
			     VGPU_APPLIED);
			held = 0;
		} else if (vgpu_counter_change(&view, 0, &owner, true, bytes, LIMIT_BYTES) ==
			   VGPU_APPLIED) {
			held = bytes;
		}
		MUST(vgpu_counter_used_bytes(&view, 0) <= LIMIT_BYTES);
	}
	if (held)
		vgpu_counter_change(&view, 0, &owner, false, held, LIMIT_BYTES);
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 4;
	uint32_t numbers[MOST_THREADS];
	pthread_t threads[MOST_THREADS];
	uint64_t bytes;

	rounds = argc > 2 ? atoi(argv[2]) : 10000;
	view.gpu_count = 1;
	view.slots_offset = sizeof(struct vgpu_region_header) + sizeof(struct vgpu_region_gpu);
	view.slot_stride = 128;
	bytes = view.slots_offset + MOST_THREADS * (uint64_t)view.slot_stride;
	view.base = aligned_alloc(64, (bytes + 63) / 64 * 64);
	MUST(view.base && count <= MOST_THREADS);
	for (uint64_t i = 0; i < bytes; i++)
		view.base[i] = 0;
	for (int i = 0; i < count; i++) {
		numbers[i] = (uint32_t)i;
		vgpu_view_slot(&view, numbers[i])->generation = 2;
		MUST(!pthread_create(&threads[i], NULL, owner_body, &numbers[i]));
	}
	for (int i = 0; i < count; i++)
		MUST(!pthread_join(threads[i], NULL));
	MUST(vgpu_counter_used_bytes(&view, 0) == 0);
	MUST(vgpu_view_gpu(&view, 0)->over_refund_count == 0);
	return 0;
}
