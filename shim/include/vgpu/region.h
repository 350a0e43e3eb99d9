/*
 * The grant and the region as one process sees them: attach, reserve, refund.
 *
 * These functions do not depend on CUDA. None of them exits, blocks without a bound, starts a
 * thread or handles a signal. Any thread may call them. A fork child begins unattached, and
 * attaches anew.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum vgpu_result {
	VGPU_OK = 0,
	VGPU_UNMANAGED,	    /* no grant directory and no variable: no limit is set */
	VGPU_OVER_LIMIT,    /* the reservation does not fit; nothing changed */
	VGPU_GRANT_MISSING, /* the directory exists, but its grant is not readable */
	VGPU_GRANT_INVALID, /* no copy of the grant is valid */
	VGPU_REGION_MISSING,
	VGPU_REGION_INVALID, /* truncated, corrupt, of another version, or of another grant */
	VGPU_REGION_READONLY,
	VGPU_NO_SLOT,		 /* all VGPU_MAX_SLOTS belong to live processes */
	VGPU_SYSTEM,		 /* a system call failed; see the error's errno */
	VGPU_ENVIRONMENT_MEMORY, /* the value of a variable that limits memory is not valid */
	VGPU_ENVIRONMENT_CORE,
	VGPU_ENVIRONMENT_CONTEXT,
	VGPU_ENVIRONMENT_GPU, /* a variable's name does not end in a GPU's number */
	VGPU_CACHE_INVALID,   /* CUDA_DEVICE_MEMORY_SHARED_CACHE names no region */
	VGPU_CACHE_UNUSABLE,  /* the region cannot be created or opened */
};

/* What failed, where and why. */
struct vgpu_error {
	enum vgpu_result result;
	int os_errno;
	char path[256];
};

/* Fill in `error` if it is not NULL, and return `result`. */
enum vgpu_result vgpu_fail(struct vgpu_error *error, enum vgpu_result result, int os_errno,
			   const char *path);

/* Write what failed, where and why to `out`, as one line without newline. Return `out`. */
const char *vgpu_error_text(const struct vgpu_error *error, char *out, uint64_t out_bytes);

/* Print on stderr why the process may not use the GPU, and the remedy. Each process prints at most
 * one such line, and none if LIBCUDA_LOG_LEVEL is 0. */
void vgpu_error_print(const struct vgpu_error *error);

/* Attach this process: find the source of its limits (a directory or the environment), validate the
 * grant and the region, reclaim slots of exited processes, and take a slot. Later calls change
 * nothing. VGPU_UNMANAGED: no limit is set. */
enum vgpu_result vgpu_attach(struct vgpu_error *error);

/* Read the grant without attaching, for a process that only queries, such as nvidia-smi. */
enum vgpu_result vgpu_peek(struct vgpu_error *error);

/* The index of a GPU by the 16 bytes of its UUID. Call it after vgpu_attach or vgpu_peek returned
 * VGPU_OK. `number` is the GPU's position in the container, in PCI order. It is used only if the
 * limits are from the environment and no list of UUIDs is set. */
int vgpu_gpu_of_uuid(const uint8_t uuid[16], int number);

/* Values in place of a GPU's index. VGPU_GPU_UNMANAGED: no limit applies to the process or to this
 * GPU. VGPU_GPU_NOT_GRANTED: the container may not use the GPU. */
enum { VGPU_GPU_UNMANAGED = -2, VGPU_GPU_NOT_GRANTED = -1 };

/* The container's present limit, and its use: the charges of its processes without this process's
 * float, and the measured overhead. */
uint64_t vgpu_limit_bytes(int gpu);
uint64_t vgpu_used_bytes(int gpu);

/* Share of the GPU's time, in percent; 0 and 100: no cap. */
uint32_t vgpu_core_percent(int gpu);

/* The charge of a context. `first`: include the charge for code, for the process's first context on
 * the GPU. */
uint64_t vgpu_context_bytes(int gpu, bool first);

/* True if managed memory is charged like other memory. */
bool vgpu_managed_is_charged(int gpu);

/* A process that holds memory of a GPU, by its pid in the caller's PID namespace. `bytes` has no
 * float. */
struct vgpu_holder {
	uint32_t pid;
	uint64_t bytes;
};

/* Iterate over the holders of a GPU's memory. Set *cursor to 0 first. False: there are no more.
 * Processes of other PID namespaces are left out. */
bool vgpu_next_holder(int gpu, uint32_t *cursor, struct vgpu_holder *holder);

/* Reserve before the driver call. Refund if the call failed, or after memory was freed. The result
 * VGPU_OVER_LIMIT means that nothing is reserved. Before it refuses bytes that would fit an empty
 * container, the function searches for exited processes. A process begins at most one search per
 * millisecond, so a refusal can take a millisecond or two. */
enum vgpu_result vgpu_reserve(int gpu, uint64_t bytes);
void vgpu_refund(int gpu, uint64_t bytes);

/* True if `bytes` more would fit now. Reserves nothing, and searches for no exited process. */
bool vgpu_fits(int gpu, uint64_t bytes);

/* Whether `bytes` fit the limit of an empty container. */
bool vgpu_may_ever_fit(int gpu, uint64_t bytes);

/* Charge memory that is in use already, regardless of the limit. */
enum vgpu_result vgpu_charge(int gpu, uint64_t bytes);

/* State how much of this process's charge is its float, which is charged but not in use
 * (docs/adr/0063). State it before the float is charged, and state 0 after it has been refunded. */
void vgpu_set_float(int gpu, uint64_t bytes);

/* The last exit of a process that held memory of the GPU, by CLOCK_MONOTONIC. In a new region it is
 * the time of the region's creation, because processes of the previous container may have exited
 * just before. 0: unknown. The memory may be in use for longer, because the kernel may release a
 * process's lock before the driver frees the memory. */
uint64_t vgpu_last_exit_ns(int gpu);
