/* See executable_graphs.h. The table is one array with open addressing. When an entry is removed,
 * later entries close the gap, so that the search for an unknown graph stays short. */
#include "ledger/executable_graphs.h"

#include "os/fork_wiped.h"
#include "os/lock.h"

_Static_assert(VGPU_ENVIRONMENT_MAX_GPUS <= 64, "the mask of GPUs");
_Static_assert(VGPU_EXECUTABLE_GRAPHS == 1 << 11, "the bits of a hash");

struct entry {
	uint64_t exec;
	struct vgpu_graph_needs bounds;
	uint32_t launched[VGPU_ENVIRONMENT_MAX_GPUS]; /* count of the GPU's trims before the latest
							 launch, plus 1; 0: not launched */
};

static struct table {
	struct vgpu_fork_wiped wiped;
	struct vgpu_lock lock;
	uint32_t trims[VGPU_ENVIRONMENT_MAX_GPUS];
	struct entry entries[VGPU_EXECUTABLE_GRAPHS];
} *shared;

static uint32_t live; /* number of entries, including those of a parent before fork */

static struct table *table(void)
{
	return vgpu_fork_wiped_pages((struct vgpu_fork_wiped **)&shared, sizeof(struct table));
}

/* The table, locked. NULL: not available. */
static struct table *enter(void)
{
	struct table *t = table();

	return t && vgpu_lock(&t->lock) ? t : NULL;
}

/* Like enter, but NULL also if there is no entry. */
static struct table *enter_used(void)
{
	return __atomic_load_n(&live, __ATOMIC_RELAXED) ? enter() : NULL;
}

static uint32_t hash_position(uint64_t exec)
{
	return (uint32_t)((exec * UINT64_C(0x9e3779b97f4a7c15)) >> 53);
}

/* The executable graph's entry. If it has none, a free entry if `to_put` is set, otherwise NULL.
 * The caller holds the lock. */
static struct entry *find(struct table *t, uint64_t exec, bool to_put)
{
	for (uint32_t step = 0; step < VGPU_EXECUTABLE_GRAPHS; step++) {
		struct entry *entry =
		    &t->entries[(hash_position(exec) + step) % VGPU_EXECUTABLE_GRAPHS];

		if (entry->exec == exec)
			return entry;
		if (!entry->exec)
			return to_put ? entry : NULL;
	}
	return NULL;
}

/* Remove an entry, and move later entries up, so that all are still found. The caller holds the
 * lock. */
static void remove_at(struct table *t, uint32_t hole)
{
	for (uint32_t step = 1; step < VGPU_EXECUTABLE_GRAPHS; step++) {
		uint32_t at = (hole + step) % VGPU_EXECUTABLE_GRAPHS;
		uint32_t distance =
		    (at - hash_position(t->entries[at].exec)) % VGPU_EXECUTABLE_GRAPHS;

		if (!t->entries[at].exec)
			break;
		if (distance < step)
			continue;
		t->entries[hole] = t->entries[at];
		hole = at;
		step = 0;
	}
	t->entries[hole].exec = 0;
}

bool vgpu_executable_graphs_put(uint64_t exec, const struct vgpu_graph_needs *bounds)
{
	struct table *t = enter();
	struct entry *entry;

	if (!t)
		return false;
	entry = find(t, exec, true);
	if (entry) {
		if (entry->exec != exec)
			__atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
		*entry = (struct entry){.exec = exec, .bounds = *bounds};
	}
	vgpu_unlock(&t->lock);
	return entry;
}

bool vgpu_executable_graphs_remove(uint64_t exec, struct vgpu_graph_needs *bounds)
{
	struct table *t = enter_used();
	struct entry *entry;

	if (!t)
		return false;
	entry = find(t, exec, false);
	if (entry) {
		*bounds = entry->bounds;
		remove_at(t, (uint32_t)(entry - t->entries));
		__atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
	}
	vgpu_unlock(&t->lock);
	return entry;
}

bool vgpu_executable_graphs_find(uint64_t exec, struct vgpu_graph_needs *bounds)
{
	struct table *t = enter_used();
	struct entry *entry;

	if (!t)
		return false;
	entry = find(t, exec, false);
	if (entry)
		*bounds = entry->bounds;
	for (int gpu = 0; entry && gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++) {
		bounds->trims[gpu] = t->trims[gpu];
		if (entry->launched[gpu] == t->trims[gpu] + 1)
			bounds->bytes[gpu] = 0;
	}
	vgpu_unlock(&t->lock);
	return entry;
}

/* Without the lock, `bounds` keeps its counts of 0. The graph is then treated as trimmed if the GPU
 * was ever trimmed, so its next launch is charged again. */
void vgpu_executable_graphs_count_trims(struct vgpu_graph_needs *bounds)
{
	struct table *t = enter();

	if (!t)
		return;
	for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		bounds->trims[gpu] = t->trims[gpu];
	vgpu_unlock(&t->lock);
}

void vgpu_executable_graphs_launched(uint64_t exec, const struct vgpu_graph_needs *bounds)
{
	struct table *t = enter_used();
	struct entry *entry;

	if (!t)
		return;
	entry = find(t, exec, false);
	for (int gpu = 0; entry && gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		entry->launched[gpu] = bounds->trims[gpu] + 1;
	vgpu_unlock(&t->lock);
}

void vgpu_executable_graphs_trimmed(int gpu)
{
	struct table *t = gpu >= 0 && __atomic_load_n(&shared, __ATOMIC_ACQUIRE) ? enter() : NULL;

	if (!t)
		return;
	t->trims[gpu]++;
	vgpu_unlock(&t->lock);
}
