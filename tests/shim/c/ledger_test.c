/*
 * Tests of the ledger without the rest of the library: compared with a naive oracle, from many
 * threads, and across fork. Exits 0 if all tests pass.
 *
 *	vgpu-ledger-test oracle SEED | blocks SEED | threads | fork
 */
#include <sys/wait.h>
#include <unistd.h>

#include "ledger/blocks.h"
#include "ledger/ledger.h"
#include "ledger/ledger_table.h"
#include "test.h"

#define KIND VGPU_KIND_MEMORY

static uint64_t seed = 1;
static struct vgpu_charge got;

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

static void add(enum vgpu_kind kind, uint64_t address, struct vgpu_charge charge)
{
	struct vgpu_charge former;

	MUST(vgpu_ledger_put(kind, address, charge, &former) == VGPU_LEDGER_ADDED);
}

/* Entries have two kinds and three contexts. A context's end removes its entries of both kinds,
 * and no others. */
static void test_oracle(void)
{
	enum { ADDRESSES = 3000, STEPS = 200000, ENDS = 2 };
	static struct vgpu_charge oracle[ADDRESSES]; /* an entry of 0 bytes is absent */
	static uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS], expected[VGPU_ENVIRONMENT_MAX_GPUS];
	/* Distances between addresses. A poor hash maps the last one's addresses to few places. */
	static const uint64_t strides[] = {512, 1 << 21, UINT64_C(1) << 30, UINT64_C(1) << 40};
	uint64_t state = seed ? seed : 1, count = 0, stride = strides[seed % 4];

	for (int step = 0; step < STEPS; step++) {
		uint64_t which = next_random(&state) % ADDRESSES, address = (which + 1) * stride;
		enum vgpu_kind kind = which % 2 ? VGPU_KIND_ARRAY : KIND;
		struct vgpu_charge *held = &oracle[which];
		bool known = held->bytes;

		/* Phases that mostly add alternate with phases that mostly take, so the tables
		 * grow and then empty. */
		if (next_random(&state) % 100 < (step / 50000 % 2 ? 30u : 70u)) {
			struct vgpu_charge charge = {next_random(&state) | 1, (int)(which % 16),
						     which % 3, 0};

			MUST(vgpu_ledger_put(kind, address, charge, &got) ==
			     (known ? VGPU_LEDGER_REPLACED : VGPU_LEDGER_ADDED));
			MUST(!known || (got.bytes == held->bytes && got.gpu == held->gpu));
			count += !known;
			*held = charge;
		} else {
			MUST(vgpu_ledger_take(kind, address, &got) == known);
			MUST(!known || (got.bytes == held->bytes && got.gpu == held->gpu));
			count -= known;
			held->bytes = 0;
		}
		MUST(entries() == count);
	}
	for (uint64_t which = ENDS; which < ADDRESSES; which += 3) {
		expected[which % 16] += oracle[which].bytes;
		oracle[which].bytes = 0;
	}
	vgpu_ledger_forget(0, bytes, NULL);
	MUST(entries() == count);
	vgpu_ledger_forget(ENDS, bytes, NULL);
	MUST(!memcmp(bytes, expected, sizeof(bytes)));
	for (uint64_t which = 0; which < ADDRESSES; which++)
		MUST(vgpu_ledger_take(which % 2 ? VGPU_KIND_ARRAY : KIND, (which + 1) * stride,
				      &got) == (oracle[which].bytes != 0));
	MUST(entries() == 0);
}

/* Allocations of three GPUs enter blocks and are freed in any order. Some frees are refused. */
static void test_blocks(void)
{
	enum { BLOCKS = 300, STEPS = 300000, PLACES = 16 };
	static struct {
		struct vgpu_charge owner;
		bool here[PLACES]; /* whether the place is in use */
		int live;
	} oracle[BLOCKS], *block;
	static uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	uint64_t state = seed ? seed : 1, count = 0, sum = 0;

	for (int step = 0; step < STEPS; step++) {
		uint64_t number = next_random(&state) % BLOCKS;
		unsigned int which = next_random(&state) % PLACES;
		/* places in several words of the bitmap, including the first and the last */
		unsigned int place = which * (VGPU_BLOCK_UNITS / PLACES) + which;
		struct vgpu_charge owner = {.gpu = (int)(number % 3),
					    .context = 1 + (next_random(&state) % 100 == 0)};
		bool ours, enters = next_random(&state) % 100 < (step / 60000 % 2 ? 35u : 65u);
		/* One in 8 steps enters only a known block, or its free is refused. */
		bool rare = next_random(&state) % 8 == 0;

		block = &oracle[number];
		ours = block->live && block->owner.context == owner.context;
		if (enters) {
			MUST(vgpu_block_enter(number + 1000, place, &owner, rare, &got) ==
			     (ours ? VGPU_BLOCK_KNOWN : VGPU_BLOCK_NEW));
			MUST((got.gpu >= 0) == (!ours && !rare && block->live));
			if (!ours && rare)
				continue;
			if (!ours) {
				count += !block->live;
				memset(block, 0, sizeof(*block));
				block->owner = owner;
			}
			block->live += !block->here[which];
			block->here[which] = true;
		} else {
			MUST(vgpu_block_take(number + 1000, place, &got) == block->here[which]);
			if (!block->here[which])
				continue;
			MUST(got.context == block->owner.context && got.gpu == block->owner.gpu);
			MUST(vgpu_block_release(number + 1000, place, &got, !rare) ==
			     (!rare && block->live == 1));
			block->here[which] = rare;
			block->live -= !rare;
			count -= !rare && !block->live;
		}
		MUST(entries() == count);
	}
	MUST(vgpu_block_any(0) && !vgpu_block_any(3));
	for (uint32_t context = 1; context <= 2; context++) {
		vgpu_ledger_forget(context, bytes, NULL);
		for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
			sum += bytes[gpu];
	}
	MUST(sum == count * vgpu_block_bytes && entries() == 0 && !vgpu_block_any(0));
}

enum { THREADS = 8, PER_THREAD = 20000 };

/* Each thread uses its own addresses. Other threads must not affect the entries that it finds. */
static void *churn(void *number)
{
	uint64_t base = (uint64_t)(uintptr_t)number * PER_THREAD + 1;
	struct vgpu_charge mine;

	for (int round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < PER_THREAD; i++) {
			add(KIND, (base + i) * 512,
			    (struct vgpu_charge){base + i, (int)(i % 16), 0, 0});
			MUST(i % 3 || (vgpu_ledger_take(KIND, (base + i) * 512, &mine) &&
				       mine.bytes == base + i));
		}
		for (uint64_t i = 0; i < PER_THREAD; i++)
			MUST(vgpu_ledger_take(KIND, (base + i) * 512, &mine) == (i % 3 != 0));
	}
	return NULL;
}

static void test_threads(void)
{
	run_threads(THREADS, churn);
	MUST(entries() == 0);
}

static void test_fork(void)
{
	struct vgpu_charge charge = {4096, 0, 0, 0};
	int status;

	for (uint64_t i = 1; i <= 1000; i++)
		add(KIND, i * 512, charge);
	if (fork() == 0) {
		MUST(!vgpu_ledger_take(KIND, 512, &got));
		MUST(entries() == 0);
		add(KIND, 512, charge);
		MUST(vgpu_ledger_take(KIND, 512, &got) && got.bytes == 4096);
		_exit(0);
	}
	MUST(wait(&status) > 0 && status == 0);
	MUST(entries() == 1000);
	MUST(vgpu_ledger_take(KIND, 512, &got) && got.bytes == 4096);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
	    {"oracle", test_oracle},
	    {"blocks", test_blocks},
	    {"threads", test_threads},
	    {"fork", test_fork},
	    {0},
	};

	if (argc > 2)
		seed = strtoull(argv[2], NULL, 10);
	return run_test(tests, argc, argv);
}
