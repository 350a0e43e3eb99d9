/*
 * The table of meters, for meter*.c alone: which pool or card's graphs each stands for, how much of
 * it is charged, and which pool is a card's current one. Knows no amounts of the driver's.
 *
 * A meter's own lock covers what it holds. Its state and its pool change under the table's lock or
 * its own, and are read by anybody: hence in a certain order.
 */
#ifndef VGPU_METER_TABLE_H
#define VGPU_METER_TABLE_H

#include "lock.h"
#include "meter.h"
#include "vgpu/region.h"
#include "wiped.h"

enum { VGPU_METER_HINTS = 64 };

enum vgpu_meter_state { VGPU_METER_NONE, VGPU_METER_POOL, VGPU_METER_DESTROYED, VGPU_METER_GRAPHS };

struct vgpu_meter {
	struct vgpu_lock lock;
	uint32_t state;
	uint64_t pool; /* the handle */
	int32_t card;
	CUdevice device; /* of graphs */
	uint64_t charged_bytes;
};

struct vgpu_meter_table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;		   /* of adding and removing */
	struct vgpu_lock changing;	   /* of current pools; taken before a meter's */
	uint32_t top;			   /* no meter in use at or above */
	uint16_t hints[VGPU_METER_HINTS];  /* by a pool's handle: where it was last found */
	uint16_t current[VGPU_MOST_CARDS]; /* index + 1 of the card's current pool; 0: ask */
	uint16_t graphs[VGPU_MOST_CARDS];  /* index + 1 */
	struct vgpu_meter meters[VGPU_METERS];
};

extern struct vgpu_wiped *vgpu_meter_pages;

static inline struct vgpu_meter_table *vgpu_meter_table(void)
{
	return vgpu_wiped_pages(&vgpu_meter_pages, sizeof(struct vgpu_meter_table));
}

static inline uint32_t vgpu_meter_state(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->state, __ATOMIC_ACQUIRE);
}

static inline uint64_t vgpu_meter_charged(const struct vgpu_meter *meter)
{
	return __atomic_load_n(&meter->charged_bytes, __ATOMIC_RELAXED);
}

/* In this order: a meter that begins another life has its pool before its state. */
static inline bool vgpu_meter_is(const struct vgpu_meter *meter, uint64_t pool,
				 enum vgpu_meter_state state)
{
	return vgpu_meter_state(meter) == state &&
	       __atomic_load_n(&meter->pool, __ATOMIC_ACQUIRE) == pool;
}

static inline uint16_t vgpu_meter_current_index(const struct vgpu_meter_table *t, int card)
{
	return __atomic_load_n(&t->current[card], __ATOMIC_ACQUIRE);
}

static inline bool vgpu_meter_is_current(const struct vgpu_meter *meter)
{
	const struct vgpu_meter_table *t = vgpu_meter_table();

	return vgpu_meter_current_index(t, meter->card) == meter - t->meters + 1;
}

/* A meter for it; NULL where the table is full. The caller holds the table's lock. */
struct vgpu_meter *vgpu_meter_new(struct vgpu_meter_table *t, enum vgpu_meter_state state,
				  uint64_t pool, int card);

/* A device that lies on the card; false: the program sees none. */
bool vgpu_meter_device(int card, CUdevice *device);

/* The meter's pool is current nowhere: whoever takes from a current pool asks the driver again. The
 * second says so where the driver does. */
void vgpu_meter_not_current(struct vgpu_meter_table *t, const struct vgpu_meter *meter);
void vgpu_meter_recheck_current(const struct vgpu_meter *meter);

#endif
