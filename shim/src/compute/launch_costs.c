#include "compute/launch_costs.h"

#include "compute/nanoseconds.h"

#define UNKNOWN_NS  20000 /* assumed cost of a launch of an unknown kind */
#define COST_MAX_NS UINT64_C(1000000000)

enum {
	COST_WAYS = 8, /* neighbours among which a kind has its place */
	COSTS = 512 * COST_WAYS,
	MISSING = 3, /* samples after the first of which the least counts */
	RELEARN = 4, /* a sample of more than this many times the cost is high */
	HIGH_SAMPLES = 3,
};

/* By kind: tag << 32 | cost << 2 | missing samples. Place and tag are parts of one hash. */
static uint64_t costs[COSTS] __attribute__((aligned(64)));

static uint64_t entry(uint16_t kind)
{
	return __atomic_load_n(&costs[kind], __ATOMIC_RELAXED);
}

static void set_entry(uint16_t kind, uint64_t tag, uint64_t cost_ns, uint64_t missing)
{
	__atomic_store_n(&costs[kind], tag << 32 | cost_ns << 2 | missing, __ATOMIC_RELAXED);
}

uint16_t vgpu_cost_kind(uint64_t handle, uint64_t size)
{
	static uint32_t victim;
	uint64_t magnitude = size ? 64 - (uint64_t)__builtin_clzll(size) : 0;
	uint64_t hash = ((handle >> 3) * 64 + magnitude) * UINT64_C(0x9e3779b97f4a7c15);
	uint16_t first = (uint16_t)(hash >> 55) * COST_WAYS, kind;
	uint64_t tag = (hash >> 23 & UINT32_MAX) | 1, found;

	for (kind = first; kind < first + COST_WAYS; kind++) {
		found = entry(kind) >> 32;
		if (found == tag)
			return kind;
		if (!found)
			break;
	}
	if (kind == first + COST_WAYS)
		kind = (uint16_t)(first +
				  __atomic_fetch_add(&victim, 1, __ATOMIC_RELAXED) % COST_WAYS);
	set_entry(kind, tag, 0, 0);
	return kind;
}

uint32_t vgpu_cost_known_ns(uint16_t kind)
{
	uint32_t value = (uint32_t)entry(kind);

	return value & 3 ? 0 : value >> 2;
}

uint32_t vgpu_cost_assumed_ns(uint16_t kind)
{
	uint32_t cost_ns = (uint32_t)entry(kind) >> 2;

	return cost_ns ? cost_ns : UNKNOWN_NS;
}

bool vgpu_cost_is_unknown(uint16_t kind)
{
	return (uint32_t)entry(kind) < 4;
}

uint32_t vgpu_cost_tag(uint16_t kind)
{
	return (uint32_t)(entry(kind) >> 32);
}

void vgpu_cost_assume(uint16_t kind, uint32_t tag)
{
	if (vgpu_cost_tag(kind) == tag)
		set_entry(kind, tag, vgpu_cost_assumed_ns(kind), 0);
}

void vgpu_cost_learn(struct vgpu_high_samples *samples, uint16_t kind, uint32_t tag,
		     uint64_t took_ns, bool alone)
{
	uint64_t value = entry(kind), cost_ns = (uint32_t)value >> 2, missing = value & 3;
	bool high = cost_ns && !missing && took_ns > cost_ns * (alone ? 2 : RELEARN);

	if (value >> 32 != tag)
		return;
	if (samples->kind != kind && high)
		samples->count = 1;
	else if (samples->kind == kind)
		samples->count = high ? samples->count + 1 : 0;
	if (high)
		samples->kind = kind;
	took_ns = earlier(later(took_ns, 1), COST_MAX_NS);
	if (!cost_ns || (high && (alone || samples->count >= HIGH_SAMPLES)))
		set_entry(kind, tag, took_ns, MISSING);
	else if (missing)
		set_entry(kind, tag, earlier(cost_ns, took_ns), missing - 1);
	else if (took_ns < cost_ns * 7 / 8 || alone)
		set_entry(kind, tag,
			  took_ns < cost_ns ? (cost_ns + 3 * took_ns + 3) / 4
					    : (cost_ns + took_ns + 1) / 2,
			  0);
}
