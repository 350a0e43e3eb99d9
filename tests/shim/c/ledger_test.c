/*
 * The ledger alone, under sanitizers too: against a naive oracle, from many threads and across
 * fork. Prints nothing and exits 0 where all holds.
 *
 *	vgpu-ledger-test oracle SEED | blocks SEED | threads | fork | contexts
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger/blocks.h"
#include "ledger/ledger.h"
#include "ledger/ledger_table.h"
#include "test.h"

#define KIND VGPU_KIND_MEMORY

static uint64_t entries(void)
{
	struct vgpu_shard *shard;
	uint64_t count = 0;

	for (unsigned int i = 0; (shard = vgpu_shard_number(i)); i++) {
		count += shard->count;
		vgpu_shard_leave(shard);
	}
	return count;
}

static void test_oracle(uint64_t seed)
{
	enum { ADDRESSES = 3000, STEPS = 200000 };
	static struct vgpu_charge oracle[ADDRESSES]; /* bytes 0: absent */
	struct vgpu_charge got;
	uint64_t state = seed ? seed : 1, count = 0;
	/* Strides of real allocators, and one that maps all to few places if the hash is poor. */
	static const uint64_t strides[] = {512, 1 << 21, UINT64_C(1) << 30, UINT64_C(1) << 40};
	uint64_t stride = strides[seed % 4];

	for (int step = 0; step < STEPS; step++) {
		uint64_t which = next_random(&state) % ADDRESSES;
		uint64_t address = (which + 1) * stride;
		struct vgpu_charge *held = &oracle[which];
		/* Phases that mostly add and mostly take: the tables grow, then empty. */
		if (next_random(&state) % 100 < (step / 50000 % 2 ? 30u : 70u)) {
			struct vgpu_charge charge = {next_random(&state) | 1, (int)(which % 16), 0,
						     0};
			enum vgpu_ledger_put put = vgpu_ledger_put(KIND, address, charge, &got);
			MUST(put == (held->bytes ? VGPU_LEDGER_REPLACED : VGPU_LEDGER_ADDED));
			MUST(!held->bytes || (got.bytes == held->bytes && got.gpu == held->gpu));
			count += !held->bytes;
			*held = charge;
		} else {
			bool known = vgpu_ledger_take(KIND, address, &got);
			MUST(known == (held->bytes != 0));
			MUST(!known || (got.bytes == held->bytes && got.gpu == held->gpu));
			count -= known;
			held->bytes = 0;
		}
		MUST(entries() == count);
	}
	for (uint64_t which = 0; which < ADDRESSES; which++)
		MUST(vgpu_ledger_take(KIND, (which + 1) * stride, &got) ==
		     (oracle[which].bytes != 0));
	MUST(entries() == 0);
}

/* The expected state of one block in the table. */
struct oracle_block {
	struct vgpu_charge owner;
	bool here[16]; /* places in use, of those that the test uses */
	int live;
};

static unsigned int oracle_place(unsigned int which)
{
	return which * (VGPU_BLOCK_UNITS / 16) +
	       which; /* of several words, the first and last too */
}

/* Enter, take and release in any order, by three owners, with frees that the driver refuses. */
static void test_blocks(uint64_t seed)
{
	enum { BLOCKS = 300, STEPS = 300000 };
	static struct oracle_block oracle[BLOCKS];
	uint64_t state = seed ? seed : 1, count = 0;
	struct vgpu_charge got;

	for (int step = 0; step < STEPS; step++) {
		uint64_t number = next_random(&state) % BLOCKS;
		unsigned int which = next_random(&state) % 16;
		struct oracle_block *block = &oracle[number];
		struct vgpu_charge owner = {.gpu = (int)(number % 3),
					    .context = 1 + (next_random(&state) % 100 == 0)};
		bool ours = block->live && block->owner.context == owner.context;

		if (next_random(&state) % 100 < (step / 60000 % 2 ? 35u : 65u)) {
			bool only_known = next_random(&state) % 8 == 0;
			enum vgpu_block said = vgpu_block_enter(number + 1000, oracle_place(which),
								&owner, only_known, &got);
			MUST(said == (ours ? VGPU_BLOCK_KNOWN : VGPU_BLOCK_NEW));
			MUST((got.gpu >= 0) == (!ours && !only_known && block->live));
			if (!ours && only_known)
				continue;
			if (!ours) {
				count += !block->live;
				*block = (struct oracle_block){.owner = owner};
			}
			block->live += !block->here[which];
			block->here[which] = true;
		} else {
			bool freed = next_random(&state) % 8 != 0;
			MUST(vgpu_block_take(number + 1000, oracle_place(which), &got) ==
			     block->here[which]);
			if (!block->here[which])
				continue;
			MUST(got.context == block->owner.context && got.gpu == block->owner.gpu);
			MUST(vgpu_block_release(number + 1000, oracle_place(which), &got, freed) ==
			     (freed && block->live == 1));
			block->here[which] = !freed;
			block->live -= freed;
			count -= freed && !block->live;
		}
		MUST(entries() == count);
	}
	MUST(vgpu_block_any(0) && !vgpu_block_any(3));
	static uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	uint64_t sum = 0;
	for (uint32_t context = 1; context <= 2; context++) {
		vgpu_ledger_forget(context, bytes, NULL);
		for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
			sum += bytes[gpu];
	}
	MUST(sum == count * vgpu_block_bytes && entries() == 0 && !vgpu_block_any(0));
}

/* A context's end removes its entries, of every kind, and no other's. */
static void test_contexts(void)
{
	static uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	struct vgpu_charge got;

	for (uint64_t i = 0; i < 30000; i++) {
		struct vgpu_charge charge = {i, (int)(i % 2), (uint32_t)(i % 3), 0};
		MUST(vgpu_ledger_put(KIND, (i + 1) << 21, charge, &got) == VGPU_LEDGER_ADDED);
		MUST(vgpu_ledger_put(VGPU_KIND_ARRAY, (i + 1) << 21, charge, &got) ==
		     VGPU_LEDGER_ADDED);
	}
	vgpu_ledger_forget(0, bytes, NULL);
	MUST(entries() == 60000);
	uint64_t expected[2] = {0, 0};
	for (uint64_t i = 2; i < 30000; i += 3)
		expected[i % 2] += 2 * i;
	vgpu_ledger_forget(2, bytes, NULL);
	MUST(bytes[0] == expected[0] && bytes[1] == expected[1]);
	MUST(entries() == 40000);
	for (uint64_t i = 0; i < 30000; i++)
		MUST(vgpu_ledger_take(VGPU_KIND_ARRAY, (i + 1) << 21, &got) == (i % 3 != 2));
}

enum { THREADS = 8, PER_THREAD = 20000 };

/* Own addresses only: regardless of other threads, each must find its own. */
static void *churn(void *argument)
{
	uint64_t base = (uint64_t)(uintptr_t)argument * PER_THREAD + 1;
	struct vgpu_charge got;

	for (int round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < PER_THREAD; i++) {
			struct vgpu_charge charge = {base + i, (int)(i % 16), 0, 0};
			MUST(vgpu_ledger_put(KIND, (base + i) * 512, charge, &got) ==
			     VGPU_LEDGER_ADDED);
			if (i % 3 == 0) {
				MUST(vgpu_ledger_take(KIND, (base + i) * 512, &got));
				MUST(got.bytes == base + i);
			}
		}
		for (uint64_t i = 0; i < PER_THREAD; i++)
			MUST(vgpu_ledger_take(KIND, (base + i) * 512, &got) == (i % 3 != 0));
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, churn, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	MUST(entries() == 0);
}

static void test_fork(void)
{
	struct vgpu_charge charge = {4096, 0, 0, 0}, got;
	int status;

	for (uint64_t i = 1; i <= 1000; i++)
		MUST(vgpu_ledger_put(KIND, i * 512, charge, &got) == VGPU_LEDGER_ADDED);
	pid_t child = fork();
	if (child == 0) {
		MUST(!vgpu_ledger_take(KIND, 512, &got));
		MUST(entries() == 0);
		MUST(vgpu_ledger_put(KIND, 512, charge, &got) == VGPU_LEDGER_ADDED);
		MUST(vgpu_ledger_take(KIND, 512, &got) && got.bytes == 4096);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child && status == 0);
	MUST(entries() == 1000);
	MUST(vgpu_ledger_take(KIND, 512, &got) && got.bytes == 4096);
}

int main(int argc, char **argv)
{
	const char *test = argc > 1 ? argv[1] : "";

	if (strcmp(test, "oracle") == 0 && argc == 3)
		test_oracle(strtoull(argv[2], NULL, 10));
	else if (strcmp(test, "blocks") == 0 && argc == 3)
		test_blocks(strtoull(argv[2], NULL, 10));
	else if (strcmp(test, "contexts") == 0)
		test_contexts();
	else if (strcmp(test, "threads") == 0)
		test_threads();
	else if (strcmp(test, "fork") == 0)
		test_fork();
	else
		return 2;
	return 0;
}
