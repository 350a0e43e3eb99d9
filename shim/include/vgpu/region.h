/*
 * Grant and region as seen by one process: attach, reserve, refund.
 *
 * Handles files, slots and counters; independent of CUDA. No function exits, blocks without a
 * bound, starts a thread or handles a signal. All are safe from any thread. After fork the child is
 * detached and attaches again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum vgpu_result {
	VGPU_OK = 0,
	VGPU_UNMANAGED,	    /* neither grant directory nor variable: no limit is set */
	VGPU_OVER_LIMIT,    /* the reservation does not fit; nothing changed */
	VGPU_GRANT_MISSING, /* the directory exists, the grant is not readable */
	VGPU_GRANT_INVALID, /* no copy of the grant is valid */
	VGPU_REGION_MISSING,
	VGPU_REGION_INVALID, /* truncated, corrupt, of another version, or of another grant */
	VGPU_REGION_READONLY,
	VGPU_NO_SLOT,		 /* all VGPU_MAX_SLOTS belong to live processes */
	VGPU_SYSTEM,		 /* a system call failed; see the error's errno */
	VGPU_ENVIRONMENT_MEMORY, /* a variable that limits memory has no valid value */
	VGPU_ENVIRONMENT_CORE,
	VGPU_ENVIRONMENT_CONTEXT,
	VGPU_ENVIRONMENT_GPU, /* a variable's name ends in no number of a GPU */
	VGPU_CACHE_INVALID, /* the object that CUDA_DEVICE_MEMORY_SHARED_CACHE names is not a region
			     */
	VGPU_CACHE_UNUSABLE, /* the region cannot be created or opened */
};

/* Location and cause; filled by the functions that take one. */
struct vgpu_error {
	enum vgpu_result result;
	int os_errno;
	char path[256];
};

/* Fill in `error`, if there is one, and return `result`. */
enum vgpu_result vgpu_fail(struct vgpu_error *error, enum vgpu_result result, int os_errno,
			   const char *path);

/* One line of text without newline: what, where, why. Never NULL; `out` is the buffer. */
const char *vgpu_error_text(const struct vgpu_error *error, char *out, uint64_t out_bytes);

/* Print on stderr why the GPU is refused, and the remedy: one line per process, and none where
 * LIBCUDA_LOG_LEVEL is 0. */
void vgpu_error_print(const struct vgpu_error *error);

/*
 * Attach this process: find the directory (/.gpuslice if it exists, else GPUSLICE_DIR), validate
 * grant and region, reclaim slots of exited processes, take a slot. Idempotent. VGPU_UNMANAGED
 * without a directory.
 */
enum vgpu_result vgpu_attach(struct vgpu_error *error);

/* Read the grant without attaching, for a process that only queries, such as nvidia-smi. */
enum vgpu_result vgpu_peek(struct vgpu_error *error);

/*
 * After vgpu_attach or vgpu_peek returned VGPU_OK: index of a GPU by the 16 bytes of its UUID.
 * `number` is the GPU's position in the container, in PCI order; only limits from the environment
 * use it, if no list of UUIDs is set.
 */
int vgpu_gpu_of_uuid(const uint8_t uuid[16], int number);

/* True if the limits are from the environment, which numbers GPUs; a grant names their UUIDs. */
bool vgpu_limits_are_numbered(void);

/* In place of an index: no limit applies to the process or to the GPU; the GPU is not granted. */
enum { VGPU_GPU_UNMANAGED = -2, VGPU_GPU_NOT_GRANTED = -1 };

/* The newest limit, which can change at any time, and the container's use of it: charges of its
 * processes, and what the driver holds beyond them, as measured from outside. */
uint64_t vgpu_limit_bytes(int gpu);
uint64_t vgpu_used_bytes(int gpu);

/* Share of the GPU's time, in percent; 0 and 100: no cap. */
uint32_t vgpu_core_percent(int gpu);

/* The charge of a context; `first` of the process on that GPU includes an allowance for code. */
uint64_t vgpu_context_bytes(int gpu, bool first);

/* True if managed memory is charged like any other. */
bool vgpu_managed_is_charged(int gpu);

/* A process that holds memory of a GPU, by its pid in the caller's PID namespace. */
struct vgpu_holder {
	uint32_t pid;
	uint64_t bytes;
};

/* Iterate: *cursor = 0 first, until false. Processes of other PID namespaces are left out. */
bool vgpu_next_holder(int gpu, uint32_t *cursor, struct vgpu_holder *holder);

/*
 * Reserve before the driver call; refund if it failed, or after it freed. VGPU_OVER_LIMIT changes
 * only the statistics. Before it is returned, one search for exited processes has begun and ended;
 * at most one per millisecond begins, so a refusal can take a millisecond or two.
 */
enum vgpu_result vgpu_reserve(int gpu, uint64_t bytes);
void vgpu_refund(int gpu, uint64_t bytes);

/* True if so much more would fit now; reserves nothing and searches for no exited process. */
bool vgpu_fits(int gpu, uint64_t bytes);

/* Whether `bytes` fit the limit of an empty container. */
bool vgpu_may_ever_fit(int gpu, uint64_t bytes);

/*
 * A call that may take up to VGPU_CHUNK_BYTES, and mostly takes none, without two updates of the
 * counter. Far below the limit it is announced in the process's slot instead, and reservations near
 * the limit leave capacity for it. One such call of a process at a time. NULL: reserve. After the
 * call charge what it took, then call `end`.
 */
#define VGPU_CHUNK_BYTES (UINT64_C(32) << 20)
uint64_t *vgpu_growing_begin(int gpu);
void vgpu_growing_end(uint64_t *growing);

/* Charge what is in use already, regardless of the limit. */
enum vgpu_result vgpu_charge(int gpu, uint64_t bytes);

/*
 * CLOCK_MONOTONIC of the latest exit that gave up memory of that GPU: of a process of the container
 * or, if its region is new, of the previous container; 0: unknown. The kernel does not order the
 * release of a lock before the driver's teardown: the GPU may hold the bytes longer.
 */
uint64_t vgpu_last_exit_ns(int gpu);
