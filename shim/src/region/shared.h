/*
 * Memory that several processes of the container hold. It is charged once, to a slot of its own.
 *
 * The exporter moves its charge to that slot. The exporter and every importer share the slot's
 * lock, each by an anchor of its own (attach.c). When the last holder releases the slot or exits,
 * the lock is free, and the charge is dropped like an exited process's. Importers find the slot by
 * a key (export_key.h).
 */
#pragma once

#include <stdint.h>

#include "region/process.h"
#include "region/slots.h"

/* The number of a shared slot that this process holds, plus 1. 0: none. */
typedef uint32_t vgpu_hold;

struct vgpu_shared_charge {
	int gpu;
	uint64_t bytes;
};

/* Move bytes of this process's charge to a new shared slot, which others may join by the key until
 * its last holder ends. During the move the bytes are charged twice for a moment. 0: nothing
 * changed, for example because half of all slots are shared already. Importers are then charged
 * themselves. */
vgpu_hold vgpu_shared_export(struct vgpu_shared_charge charge, uint64_t key);

/* Hold the shared slot that an exporter of this container offers by the key. 0: there is none. */
vgpu_hold vgpu_shared_join(uint64_t key, struct vgpu_shared_charge *charge);

/* Release a hold, once for each export and each join. When the last holder leaves, the charge
 * ends. */
void vgpu_shared_leave(vgpu_hold hold);
