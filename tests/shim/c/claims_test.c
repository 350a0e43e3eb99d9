/*
 * Claims alone, under sanitizers too. Prints nothing and exits 0 where all holds.
 *
 *	vgpu-claims-test threads   many threads make, map, retain and drop; at the end nothing is
 * held
 *	vgpu-claims-test full      beyond the last claim nothing is held, and nothing is lost
 *	vgpu-claims-test fork      a child has none, and its parent all
 *	vgpu-claims-test shared    memory that was shared is charged elsewhere, and left once
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "charge/claims.h"
#include "test.h"

enum { THREADS = 8, ROUNDS = 4000, SLOTS = 16, BYTES = 2 << 20 };

static uint64_t charged_bytes;

/* In place of admission.c. */
CUresult vgpu_reserve_at(struct vgpu_place place, uint64_t bytes, struct vgpu_reservation *out)
{
	*out = (struct vgpu_reservation){place, bytes};
	__atomic_add_fetch(&charged_bytes, bytes, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

void vgpu_cancel(const struct vgpu_reservation *reservation)
{
	__atomic_sub_fetch(&charged_bytes, reservation->bytes, __ATOMIC_RELAXED);
}

static uint64_t left;

/* In place of shared.c. */
void vgpu_shared_leave(vgpu_hold hold)
{
	if (hold)
		left += hold;
}

static uint32_t make(void)
{
	struct vgpu_physical memory = {.device = 0};
	uint32_t claim;

	vgpu_reserve_at((struct vgpu_place){.gpu = 0}, BYTES, &memory.charge);
	claim = vgpu_claim_new(&memory);
	if (!claim)
		vgpu_cancel(&memory.charge);
	return claim;
}

static void keep_handle(uint32_t claim, uint64_t handle)
{
	vgpu_claim_end(claim, CUDA_SUCCESS,
		       (struct vgpu_claim_to){
			   .kind = VGPU_CLAIM_HANDLE, .one_of_several = true, .key = handle});
}

static void forget_handle(uint64_t handle)
{
	uint32_t claim;

	while ((claim = vgpu_take_handle(handle)))
		vgpu_settle_claims(claim, CUDA_SUCCESS);
}

/* Handles are the thread's own, addresses too; the table, its lists and its numbers are not. */
static void *work(void *argument)
{
	uint64_t base = ((uint64_t)(uintptr_t)argument + 1) << 40;
	uint64_t state = base | 1;
	struct {
		int handles, mapped;
	} slot[SLOTS] = {0};

	for (int round = 0; round < ROUNDS; round++) {
		uint64_t which = next_random(&state) % SLOTS;
		uint64_t handle = base + which, address = base + (which << 24);
		uint32_t claim;

		switch (next_random(&state) % 4) {
		case 0:
			if (!slot[which].handles && !slot[which].mapped) {
				keep_handle(make(), handle);
				slot[which].handles = 1;
			}
			break;
		case 1:
			if (!slot[which].handles || slot[which].mapped)
				break;
			MUST(vgpu_claim_handle(handle, &claim) && claim);
			/* The driver refuses one in four. */
			slot[which].mapped = next_random(&state) % 4 != 0;
			vgpu_claim_end(claim, slot[which].mapped ? CUDA_SUCCESS : 1,
				       (struct vgpu_claim_to){.kind = VGPU_CLAIM_MAPPING,
							      .key = address,
							      .extent = BYTES});
			break;
		case 2:
			if (!slot[which].mapped)
				break;
			MUST(vgpu_claim_range(address + 1, 1, &claim) && claim);
			keep_handle(claim, handle);
			slot[which].handles++;
			break;
		default:
			if (slot[which].mapped) {
				vgpu_settle_claims(vgpu_take_mappings(address, BYTES), 1);
				vgpu_settle_claims(vgpu_take_mappings(address, BYTES),
						   CUDA_SUCCESS);
				slot[which].mapped = 0;
			}
			for (; slot[which].handles; slot[which].handles--)
				vgpu_settle_claims(vgpu_take_handle(handle), CUDA_SUCCESS);
			MUST(!vgpu_take_handle(handle));
		}
	}
	for (uint64_t which = 0; which < SLOTS; which++) {
		vgpu_settle_claims(vgpu_take_mappings(base + (which << 24), BYTES), CUDA_SUCCESS);
		forget_handle(base + which);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		MUST(!pthread_create(&threads[i], NULL, work, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	MUST(charged_bytes == 0);
}

static void test_full(void)
{
	uint64_t made = 0;
	uint32_t claim;

	while ((claim = make())) {
		made++;
		keep_handle(claim, made);
	}
	MUST(made == VGPU_CLAIMS - 1 && charged_bytes == made * BYTES);
	MUST(!vgpu_claim_handle(1, &claim));
	MUST(vgpu_claim_handle(made + 1, &claim) && !claim);
	vgpu_settle_claims(vgpu_take_handle(7), CUDA_SUCCESS);
	MUST(vgpu_claim_handle(1, &claim) && claim);
	vgpu_claim_end(claim, 1, (struct vgpu_claim_to){0});
	for (uint64_t handle = 1; handle <= made; handle++)
		forget_handle(handle);
	MUST(charged_bytes == 0);
}

static void test_fork(void)
{
	int status;

	keep_handle(make(), 5);
	if (fork() == 0) {
		MUST(!vgpu_take_handle(5));
		keep_handle(make(), 6);
		forget_handle(6);
		_exit(charged_bytes != BYTES);
	}
	MUST(wait(&status) > 0 && status == 0);
	forget_handle(5);
	MUST(charged_bytes == 0);
}

static void test_shared(void)
{
	uint32_t claim;

	keep_handle(make(), 5);
	MUST(vgpu_claim_handle(5, &claim) && claim);
	MUST(vgpu_claimed_share(claim, 3, 77));
	charged_bytes -= BYTES; /* moved to the slot */
	MUST(!vgpu_claimed_share(claim, 4, 78));
	MUST(vgpu_claimed_physical(claim).hold == 3 && vgpu_claimed_physical(claim).key == 77);
	vgpu_claim_end(claim, 1, (struct vgpu_claim_to){0});
	MUST(left == 0);
	vgpu_settle_claims(vgpu_take_handle(5), CUDA_SUCCESS);
	MUST(left == 3 && charged_bytes == 0);
}

int main(int argc, char **argv)
{
	MUST(argc == 2);
	if (!strcmp(argv[1], "threads"))
		test_threads();
	else if (!strcmp(argv[1], "full"))
		test_full();
	else if (!strcmp(argv[1], "shared"))
		test_shared();
	else
		test_fork();
	return 0;
}
