/*
 * Meters: memory whose amount the driver tells only after it took it.
 *
 * A pool takes chunks of the card's memory, of a size of its own, and gives them back when it sees
 * fit; so do the graphs of a device. One meter stands for each: where it lies, how to ask the
 * driver what is reserved, and how much of that is charged. Around a call that may take more, its
 * lock is held, so that what is charged follows what is reserved; at every call that may give back,
 * and before anybody is refused, the meters are read again. No context owns what they stand for.
 *
 * The table is bounded: where it is full, no further pool can be created or imported. A fork child
 * begins with an empty one.
 */
#ifndef VGPU_METER_H
#define VGPU_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "admission.h"
#include "hooks.h"

enum { VGPU_METERS = 1024 };

struct vgpu_meter;

/* A driver call that may take memory, and how to undo it where there is more than fits. */
struct vgpu_metered_call {
	CUresult (*take)(const struct vgpu_metered_call *call);
	CUresult (*undo)(const struct vgpu_metered_call *call); /* NULL: cannot be undone */
	enum vgpu_function twin;
	CUdeviceptr *address;
	uint64_t size_bytes;
	CUmemoryPool pool;
	CUgraphExec exec;
	CUstream stream;
	CUstream capturing; /* the same, where stream 0 is the thread's own by that name */
	/* Not NULL: it takes from the card's current pool. True where that has become another than
	 * the meter's: nothing was done then. */
	bool *moved;
};

/* The meter of a pool that is known; NULL: it is not. */
struct vgpu_meter *vgpu_meter_find(CUmemoryPool pool);
/* The program has destroyed the pool, which lives on for what is allocated from it. */
bool vgpu_meter_outlives(CUmemoryPool pool);
/* Make a pool known; NULL where the table is full. */
struct vgpu_meter *vgpu_meter_add(CUmemoryPool pool, int card);
/* The meter of the card's current pool, or NULL. */
struct vgpu_meter *vgpu_meter_current(int card);
/* Between these two nobody takes from the card's current pool, and nobody else makes another
 * current. `now`: the one that the driver made current, or NULL. */
struct vgpu_meter *vgpu_meter_hold_current(int card);
void vgpu_meter_let_current(struct vgpu_meter *held, int card, CUmemoryPool now);
/* The meter of the graph memory of a card, or NULL. */
struct vgpu_meter *vgpu_meter_graphs(int card);

int vgpu_meter_card(const struct vgpu_meter *meter);

/*
 * Make the call under a reservation of `bytes`, and charge what the meter grew by. Where that does
 * not fit, the call is undone, and CUDA_ERROR_OUT_OF_MEMORY; what cannot be undone stays charged.
 * Bytes are 0 of a call that takes nothing new: it is made however little room there is.
 */
CUresult vgpu_meter_call(struct vgpu_meter *meter, uint64_t bytes,
			 const struct vgpu_metered_call *call);

/* Read all meters: what the driver has given back is refunded. Of next to no cost where no meter
 * has anything. */
extern uint32_t vgpu_meters_live;
void vgpu_meters_read_all(void);
static inline void vgpu_meters_read(void)
{
	if (__atomic_load_n(&vgpu_meters_live, __ATOMIC_RELAXED))
		vgpu_meters_read_all();
}

/* Before a refusal: have the driver give back what this process's pools and graphs hold unused on
 * the card; true if that was anything. */
bool vgpu_meters_trim(int card);

/* The driver's cuDeviceGraphMemTrim. What it gave back the next launches have to reserve anew, also
 * where a launch holds the meter, which sees only what is left in the end. */
CUresult vgpu_trim_graphs(CUdevice device, int card);

/* The program destroyed the pool: now, or as soon as nothing of it is in use. */
CUresult vgpu_meter_destroy(struct vgpu_meter *meter, CUmemoryPool pool);

/*
 * An allocation of another process's pool, freed like any other: vgpu_take of VGPU_KIND_IMPORT,
 * which costs next to nothing where none was ever imported.
 */
extern uint32_t vgpu_pool_imports;
static inline void vgpu_take_import(uint64_t address, struct vgpu_charge *charge)
{
	charge->card = VGPU_CARD_UNMANAGED;
	if (__atomic_load_n(&vgpu_pool_imports, __ATOMIC_RELAXED))
		vgpu_take(VGPU_KIND_IMPORT, address, charge);
}

/* The driver has reset the device: its pools are gone, those that the program made as well. */
void vgpu_meters_forget(CUdevice device);

#endif
