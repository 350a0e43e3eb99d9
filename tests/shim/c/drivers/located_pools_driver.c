/*
 * A CUDA 13 driver with two GPUs, of which the first is current. Each GPU has two initial pools,
 * pinned and managed, and the host has three. A pool never releases memory.
 */
#define GPUS 2
#include "small_driver.h"

enum { PINNED = 1, MANAGED = 2, RESERVED_CURRENT = 5 };
enum { NONE, DEVICE, HOST, HOST_NUMA };

struct location {
	int type, id;
};

struct pool {
	int type;
	struct location location;
	unsigned long long reserved_bytes;
};

static struct pool pools[] = {
    {PINNED, {DEVICE, 0}, 0},  {PINNED, {DEVICE, 1}, 0}, {MANAGED, {DEVICE, 0}, 0},
    {MANAGED, {DEVICE, 1}, 0}, {PINNED, {HOST, 0}, 0},	 {PINNED, {HOST_NUMA, 0}, 0},
    {MANAGED, {NONE, 0}, 0},
};

static void *current = &pools;

int cuMemGetDefaultMemPool(struct pool **pool, const struct location *location, int type)
{
	for (size_t i = 0; i < sizeof(pools) / sizeof(*pools); i++)
		if (pools[i].type == type && pools[i].location.type == location->type &&
		    pools[i].location.id == location->id) {
			*pool = &pools[i];
			return 0;
		}
	return INVALID_VALUE;
}

int cuMemGetMemPool(struct pool **pool, const struct location *location, int type)
{
	return cuMemGetDefaultMemPool(pool, location, type);
}

int cuDeviceGetDefaultMemPool(struct pool **pool, int device)
{
	return cuMemGetDefaultMemPool(pool, &(struct location){DEVICE, device}, PINNED);
}

int cuMemPoolGetAttribute(const struct pool *pool, int attribute, void *value)
{
	if (attribute != RESERVED_CURRENT)
		return INVALID_VALUE;
	*(unsigned long long *)value = pool->reserved_bytes;
	return 0;
}

int cuMemAllocFromPoolAsync(unsigned long long *address, size_t bytes, struct pool *pool,
			    void *stream)
{
	static unsigned long long next = 1ULL << 40;

	*address = next;
	next += bytes;
	pool->reserved_bytes += bytes;
	return stream ? INVALID_VALUE : 0;
}
