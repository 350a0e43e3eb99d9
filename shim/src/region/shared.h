/*
 * Memory that several processes of the container hold: charged once, in a slot of its own.
 *
 * The exporter moves the charge there; it and every importer hold the slot's lock, shared, each
 * through an anchor. When the last of them releases it or exits the lock is free, and the charge is
 * dropped as an exited process's is. Independent of CUDA: the key is the hash of the exported
 * handle.
 */
#pragma once

#include <stdint.h>

#include "region/process.h"
#include "region/slots.h"

/* This process's hold of one shared slot; 0: nothing. */
typedef uint32_t vgpu_hold;

struct vgpu_shared_charge {
	int gpu;
	uint64_t bytes;
};

/*
 * Move bytes of this process's charge to a slot that others may join by the key, from now until its
 * last holder ends. For a moment they are charged twice, never not at all. 0: not possible (half of
 * all slots may be shared, and processes need theirs), and nothing changed: importers then charge
 * themselves.
 */
vgpu_hold vgpu_shared_export(struct vgpu_shared_charge charge, uint64_t key);

/* Hold what an exporter of this container has shared by the key. 0: none has. */
vgpu_hold vgpu_shared_join(uint64_t key, struct vgpu_shared_charge *charge);

/* Once for each export and join. The last holder's release ends the charge. */
void vgpu_shared_leave(vgpu_hold hold);
