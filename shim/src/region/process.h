/*
 * The state of this process: one page that the kernel zeroes in every child.
 *
 * A child must never refund its parent's charge. atfork handlers do not suffice, because raw
 * clone() runs none. So the state is in a page with MADV_WIPEONFORK. Linux before 4.14 lacks that,
 * so the page's pid is compared.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/identity.h"
#include "os/lock.h"
#include "os/process_start.h"
#include "region/counter.h"

/* One GPU's state, on a cache line of its own, because different threads use different GPUs. */
struct vgpu_process_gpu {
	struct vgpu_lock lock;
	uint64_t held_bytes;  /* the process's charge, for a new slot if this one is lost */
	uint64_t float_bytes; /* of the charge; written without the lock (vgpu_set_float) */
	int64_t late_bytes;   /* changes that the lock's next holder must apply */
} __attribute__((aligned(64)));

struct vgpu_process {
	struct vgpu_process_start start;
	struct vgpu_lock setup; /* held while attaching and mapping */
	bool mapped;
	bool attached; /* written while holding setup and every GPU's lock */
	struct vgpu_view view;
	uint64_t region_device;
	uint64_t region_inode;
	struct vgpu_identity self;
	struct vgpu_owner owner;
	void *anchor;	       /* a mapping that keeps the slot's lock (attach.c) */
	uint64_t last_reap_ns; /* begin of the latest search for exited processes */
	uint64_t reaped_ns;    /* begin of the latest completed search */
	uint64_t reap_took_ns; /* duration of that search */
	struct vgpu_process_gpu gpus[VGPU_ENVIRONMENT_MAX_GPUS];
};

_Static_assert(offsetof(struct vgpu_process, start) == 0, "one page is both");
_Static_assert(sizeof(struct vgpu_process) <= VGPU_PROCESS_BYTES, "the page has all of it");

/* The state of this process, or NULL if the kernel provides no page. */
static inline struct vgpu_process *vgpu_process(void)
{
	return (struct vgpu_process *)vgpu_process_start();
}
