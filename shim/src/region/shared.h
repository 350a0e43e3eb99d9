/*
 * Memory that several processes of the container hold. It is charged once, in a slot of its own.
 *
 * The exporter moves its charge to that slot. It and every importer hold the slot's lock, shared,
 * each with an anchor. When the last holder releases the slot or exits, the lock is free, and the
 * charge is dropped like that of an exited process. This is independent of CUDA: the key is the
 * hash of the exported handle.
 */
#pragma once

#include <stdint.h>

#include "region/process.h"
#include "region/slots.h"

/* A hold of this process on one shared slot. 0: none. */
typedef uint32_t vgpu_hold;

struct vgpu_shared_charge {
	int gpu;
	uint64_t bytes;
};

/*
 * Move bytes of this process's charge to a new shared slot, which others may join by the key until
 * its last holder ends. For a moment the bytes are charged twice, but never not at all. 0: that is
 * not possible, because at most half of all slots may be shared, and nothing changed. Importers are
 * then charged themselves.
 */
vgpu_hold vgpu_shared_export(struct vgpu_shared_charge charge, uint64_t key);

/* Hold the slot that an exporter of this container has shared by the key. 0: there is none. */
vgpu_hold vgpu_shared_join(uint64_t key, struct vgpu_shared_charge *charge);

/* Call it once for each export and each join. When the last holder leaves, the charge ends. */
void vgpu_shared_leave(vgpu_hold hold);
