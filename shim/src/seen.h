/*
 * Functions and executable graphs that have been launched, so that what a first launch makes the
 * driver take is measured once: a set of handles, read without a lock in a few instructions.
 *
 * A handle has WAYS places; one that comes where others fill them takes one's place, which is
 * measured again. All are forgotten before code is unloaded or a context ends, because handles come
 * again. A library's kernel has code in each context: where there were several it is seen under a
 * key for each.
 */
#ifndef VGPU_SEEN_H
#define VGPU_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"
#include "wiped.h"

enum { VGPU_SEEN_BITS = 13, VGPU_SEEN_FUNCTIONS = 1 << VGPU_SEEN_BITS, VGPU_SEEN_WAYS = 8 };

struct vgpu_seen {
	struct vgpu_wiped wiped;
	CUfunction functions[VGPU_SEEN_FUNCTIONS];
};

extern struct vgpu_wiped *vgpu_seen_pages;

static inline size_t vgpu_seen_home(CUfunction function)
{
	return (uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15) >> (64 - VGPU_SEEN_BITS);
}

bool vgpu_seen_elsewhere(CUfunction function);

static inline bool vgpu_seen(CUfunction function)
{
	struct vgpu_wiped *pages = __atomic_load_n(&vgpu_seen_pages, __ATOMIC_ACQUIRE);
	struct vgpu_seen *seen = (struct vgpu_seen *)pages;

	if (__builtin_expect(pages && !pages->owner, 1) &&
	    __builtin_expect(__atomic_load_n(&seen->functions[vgpu_seen_home(function)],
					     __ATOMIC_RELAXED) == function,
			     1))
		return true;
	return vgpu_seen_elsewhere(function);
}

void vgpu_see(CUfunction function);
void vgpu_unsee(CUfunction function);
void vgpu_forget_seen(void);

static inline CUfunction vgpu_exec_key(CUgraphExec exec)
{
	return (CUfunction)(void *)exec;
}

/* The library gave this handle out as a kernel's; of one that nobody can tell, true. */
void vgpu_note_kernel(CUkernel kernel);
bool vgpu_is_kernel(CUfunction handle);
/* What a kernel is seen by in that life of a context: no handle, which are even. */
CUfunction vgpu_seen_key(CUfunction kernel, uint32_t context);
/* A context is about to be made; and has this process had more than one? */
void vgpu_note_context(void);
bool vgpu_several_contexts(void);

#endif
