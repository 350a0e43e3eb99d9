/*
 * What this process knows of itself: one page that the kernel zeroes in every child.
 *
 * A fork child must never refund its parent's charge, and raw clone() skips atfork handlers; so all
 * that says "attached" lies in a MADV_WIPEONFORK page (before Linux 4.14: compared with the pid).
 */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "os/birth.h"
#include "os/identity.h"
#include "os/lock.h"
#include "region/counter.h"

/* On a line of its own: threads on different GPUs must not share one. */
struct vgpu_process_gpu {
	struct vgpu_lock lock;
	uint64_t held_bytes; /* what our reservations come to, should the slot be lost */
	int64_t
	    late_bytes; /* changes while the lock could not be had; its next holder makes them */
	uint64_t imported_bytes; /* held, and charged to a shared slot (shared.c) */
} __attribute__((aligned(64)));

struct vgpu_process {
	struct vgpu_birth birth;
	struct vgpu_lock setup; /* held while attaching, detaching, mapping */
	bool mapped;
	bool attached; /* written under setup and every GPU's lock */
	struct vgpu_view view;
	uint64_t region_device;
	uint64_t region_inode;
	struct vgpu_identity self;
	struct vgpu_owner owner;
	void *anchor;	       /* a mapping that keeps our slot's lock (attach.c) */
	uint64_t last_reap_ns; /* when a search for the dead last began, */
	uint64_t reaped_ns;    /* and when the last one that is over had begun, */
	uint64_t reap_took_ns; /* and how long it took */
	struct vgpu_process_gpu gpus[VGPU_MOST_GPUS];
};

/* NULL where the kernel gives no page. */
static inline struct vgpu_process *vgpu_process(void)
{
	return (struct vgpu_process *)vgpu_birth();
}

uint64_t vgpu_now_ns(void);

#endif
