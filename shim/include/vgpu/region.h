/*
 * Grant and region as seen by one process: attach, reserve, refund.
 *
 * Knows files, slots and counters; knows no CUDA. Nothing here prints, exits, blocks without a
 * bound, starts a thread or takes a signal. Safe from any thread; after fork the child is detached
 * and attaches afresh.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum vgpu_result {
	VGPU_OK = 0,
	VGPU_UNMANAGED,	    /* neither grant directory nor variable: no limit was asked for */
	VGPU_OVER_LIMIT,    /* the reservation does not fit; nothing changed */
	VGPU_GRANT_MISSING, /* the directory is there, the grant is not readable */
	VGPU_GRANT_INVALID, /* no copy of the grant is valid */
	VGPU_REGION_MISSING,
	VGPU_REGION_INVALID, /* truncated, corrupt, of another version, or of another grant */
	VGPU_REGION_READONLY,
	VGPU_NO_SLOT,		 /* all VGPU_MAX_SLOTS belong to live processes */
	VGPU_SYSTEM,		 /* a system call failed; see the error's errno */
	VGPU_ENVIRONMENT_MEMORY, /* a variable that limits memory has no valid value */
	VGPU_ENVIRONMENT_CORE,
	VGPU_CACHE_FOREIGN,  /* what CUDA_DEVICE_MEMORY_SHARED_CACHE names is something else */
	VGPU_CACHE_UNUSABLE, /* it cannot be made or opened */
};

/* Where and why; filled by the functions that take one. */
struct vgpu_error {
	enum vgpu_result result;
	int os_errno;
	char path[256];
};

/* One line for a person, without newline: what, where, why. Never NULL; `out` is the buffer. */
const char *vgpu_error_text(const struct vgpu_error *error, char *out, uint64_t out_bytes);

/*
 * Attach this process: find the directory (/.gpuslice, where it exists, and nothing else; elsewhere
 * GPUSLICE_DIR), validate grant and region, retire slots of the dead, take a slot. Idempotent.
 * VGPU_UNMANAGED where there is no directory.
 */
enum vgpu_result vgpu_attach(struct vgpu_error *error);

/* Give the slot back, its charges refunded; for tests and orderly ends. */
void vgpu_detach(void);

/* The grant, read without attaching (a process that only looks, as nvidia-smi does). */
enum vgpu_result vgpu_peek(struct vgpu_error *error);

/*
 * After vgpu_attach or vgpu_peek returned VGPU_OK: index of a GPU by its UUID's 16 bytes. `number`
 * is which of the container's GPUs it is, in PCI order; only limits from the environment ask for
 * it, where no list of UUIDs says so.
 */
int vgpu_gpu_of_uuid(const uint8_t uuid[16], int number);

/* Do the limits come from the environment, which numbers GPUs? Elsewhere their UUIDs are known. */
bool vgpu_limits_are_numbered(void);

/* In place of an index: no limit applies to the process, or to the GPU; the GPU is not granted.
 */
enum { VGPU_GPU_UNMANAGED = -2, VGPU_GPU_NOT_GRANTED = -1 };

/* The newest limit (it can change at any time), and what the container holds of it: what its
 * processes are charged, and what the driver holds beside that, as measured from outside. */
uint64_t vgpu_limit_bytes(int gpu);
uint64_t vgpu_used_bytes(int gpu);
uint32_t vgpu_core_percent(int gpu);

/* What a context is charged; `first` of the process on that GPU, with an allowance for code. */
uint64_t vgpu_context_bytes(int gpu, bool first);

/* Managed memory is charged like any other. */
bool vgpu_managed_is_charged(int gpu);

/* A process that holds memory of a GPU, by its number in the caller's PID namespace. */
struct vgpu_holder {
	uint32_t pid;
	uint64_t bytes;
};

/* One after the other, from *cursor = 0 until false. Processes of other namespaces are left out. */
bool vgpu_next_holder(int gpu, uint32_t *cursor, struct vgpu_holder *holder);

/*
 * Reserve before the driver call, refund when it failed or after it freed. VGPU_OVER_LIMIT changes
 * nothing but the statistics; before it is returned, a search for the dead has begun and ended (at
 * most one per millisecond begins, so a refusal can take a millisecond or two).
 */
enum vgpu_result vgpu_reserve(int gpu, uint64_t bytes);
void vgpu_refund(int gpu, uint64_t bytes);

/* Whether so much more would fit now; nothing is reserved, and no exited process is looked for. */
bool vgpu_fits(int gpu, uint64_t bytes);

/* Whether `bytes` fit the limit of an empty container. */
bool vgpu_may_ever_fit(int gpu, uint64_t bytes);

/*
 * A call that may take up to VGPU_CHUNK_BYTES, and mostly takes nothing, without two changes of the
 * counter: far below the limit the process's slot says so instead, and reservations near the limit
 * leave room for it. One call of a process at a time. NULL: reserve. After the call what it took is
 * charged, then `end`.
 */
#define VGPU_CHUNK_BYTES (UINT64_C(32) << 20)
uint64_t *vgpu_growing_begin(int gpu);
void vgpu_growing_end(uint64_t *growing);

/* Charge what is in use already, whatever the limit. */
enum vgpu_result vgpu_charge(int gpu, uint64_t bytes);

/*
 * CLOCK_MONOTONIC when memory of that GPU was last given up by an exit: of a process of the
 * container, or, where its region is new, of the container before it; 0: unknown. The kernel does
 * not order a lock's release against the driver's teardown: the GPU may hold the bytes longer.
 */
uint64_t vgpu_last_exit_ns(int gpu);

#endif
