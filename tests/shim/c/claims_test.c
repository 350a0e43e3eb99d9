/*
 * Tests of charge/claims.h without the rest of the library. Exits 0 if all tests pass.
 *
 *	vgpu-claims-test threads | full | fork | shared
 */
#include <sys/wait.h>
#include <unistd.h>

#include "charge/claims.h"
#include "test.h"

enum { THREADS = 8, ROUNDS = 4000, SLOTS = 16, BYTES = 2 << 20 };

static uint64_t charged_bytes, left;

/* The following functions replace those of admission.c and shared.c. */
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

void vgpu_shared_leave(vgpu_hold hold)
{
	if (hold)
		left += hold;
}

static void keep_handle(uint32_t claim, uint64_t handle)
{
	vgpu_claim_end(claim, CUDA_SUCCESS,
		       (struct vgpu_claim_to){
			   .kind = VGPU_CLAIM_HANDLE, .one_of_several = true, .key = handle});
}

/* Claim new memory under a handle. Returns false if the table is full. */
static bool make(uint64_t handle)
{
	struct vgpu_physical memory = {.device = 0};
	uint32_t claim;
	CUresult result =
	    vgpu_claim_reserved((struct vgpu_place){.gpu = 0}, BYTES, &memory, &claim);

	MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
	if (result == CUDA_SUCCESS)
		keep_handle(claim, handle);
	return result == CUDA_SUCCESS;
}

/* End all claims of the handle, and return their number. */
static int forget_handle(uint64_t handle)
{
	uint32_t claim;
	int count = 0;

	for (; (claim = vgpu_take_claim(VGPU_CLAIM_HANDLE, handle)); count++)
		vgpu_settle_claims(claim, CUDA_SUCCESS);
	return count;
}

/* Each thread has its own handles and addresses. The table, its lists and its counts are shared. */
static void *work(void *number)
{
	uint64_t base = ((uint64_t)(uintptr_t)number + 1) << 40, state = base | 1;
	struct {
		int handles;
		bool mapped;
	} slots[SLOTS] = {0}, *slot;
	uint32_t claim;

	for (int round = 0; round < ROUNDS + SLOTS; round++) {
		uint64_t which = next_random(&state) % SLOTS, what = next_random(&state) % 4;
		uint64_t handle, address;

		if (round >= ROUNDS) { /* finally, drop each slot's memory */
			which = round - ROUNDS;
			what = 3;
		}
		slot = &slots[which];
		handle = base + which;
		address = base + (which << 24);
		if (what == 0 && !slot->handles && !slot->mapped) {
			slot->handles += make(handle);
		} else if (what == 1 && slot->handles && !slot->mapped) {
			MUST(vgpu_claim_handle(handle, &claim) && claim);
			/* The driver refuses one mapping in four. */
			slot->mapped = next_random(&state) % 4;
			vgpu_claim_end(claim, slot->mapped ? CUDA_SUCCESS : 1,
				       (struct vgpu_claim_to){.kind = VGPU_CLAIM_MAPPING,
							      .key = address,
							      .extent = BYTES});
		} else if (what == 2 && slot->mapped) {
			MUST(vgpu_claim_range(address + 1, 1, &claim) && claim);
			keep_handle(claim, handle);
			slot->handles++;
		} else if (what == 3) {
			vgpu_settle_claims(vgpu_take_mappings(address, BYTES), 1);
			vgpu_settle_claims(vgpu_take_mappings(address, BYTES), CUDA_SUCCESS);
			MUST(forget_handle(handle) == slot->handles);
			slot->handles = 0;
			slot->mapped = false;
		}
	}
	return NULL;
}

/* Threads make, map, retain and drop memory. At the end nothing may be charged. */
static void test_threads(void)
{
	run_threads(THREADS, work);
	MUST(charged_bytes == 0);
}

/* When the table of claims is full, new memory is not charged, and existing claims stay. */
static void test_full(void)
{
	uint64_t made = 0;
	uint32_t claim;

	while (make(made + 1))
		made++;
	MUST(made == VGPU_CLAIMS - 1 && charged_bytes == made * BYTES);
	MUST(!vgpu_claim_handle(1, &claim));
	MUST(vgpu_claim_handle(made + 1, &claim) && !claim);
	MUST(forget_handle(7) == 1);
	MUST(vgpu_claim_handle(1, &claim) && claim);
	vgpu_claim_end(claim, 1, (struct vgpu_claim_to){0});
	for (uint64_t handle = 1; handle <= made; handle++)
		MUST(forget_handle(handle) == (handle != 7));
	MUST(charged_bytes == 0);
}

/* After fork, the child has no claims, and the parent keeps all of its claims. */
static void test_fork(void)
{
	int status;

	MUST(make(5));
	if (fork() == 0) {
		MUST(forget_handle(5) == 0);
		MUST(make(6) && forget_handle(6) == 1);
		_exit(charged_bytes != BYTES);
	}
	MUST(wait(&status) > 0 && status == 0);
	MUST(forget_handle(5) == 1 && charged_bytes == 0);
}

/* Shared memory is charged in a shared slot. When its last claim ends, that slot is left once. */
static void test_shared(void)
{
	uint32_t claim;

	MUST(make(5) && vgpu_claim_handle(5, &claim) && claim);
	MUST(vgpu_claimed_share(claim, 3, 77));
	charged_bytes -= BYTES; /* the shared slot is charged instead */
	MUST(!vgpu_claimed_share(claim, 4, 78));
	MUST(vgpu_claimed_physical(claim).hold == 3 && vgpu_claimed_physical(claim).key == 77);
	vgpu_claim_end(claim, 1, (struct vgpu_claim_to){0});
	MUST(left == 0);
	MUST(forget_handle(5) == 1 && left == 3 && charged_bytes == 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
	    {"threads", test_threads},
	    {"full", test_full},
	    {"fork", test_fork},
	    {"shared", test_shared},
	    {0},
	};

	return run_test(tests, argc, argv);
}
