/*
 * Local memory: a context has room for as much as the largest of its functions needs, for every
 * thread that the card runs at once. It grows at a launch and does not shrink.
 *
 * Remembers of each life of a context what was launched there; of the few that it has no room for,
 * nothing, and they are taken to have none.
 */
#ifndef VGPU_LOCAL_MEMORY_H
#define VGPU_LOCAL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

struct vgpu_local {
	int thread_bytes;     /* of the function */
	int64_t whole_bytes;  /* for all threads */
	int64_t growth_bytes; /* what a launch in the current context takes more */
	bool known;
};

/* The current context's card: how many threads it runs at once; 0: unknown. */
uint64_t vgpu_resident_threads(void);

struct vgpu_local vgpu_local_of(CUfunction function);

/* A function of that need was launched in the current context, or got into a graph there. */
void vgpu_local_launched(int thread_bytes);
void vgpu_local_in_graph(int thread_bytes);

/* The most that a graph may have to make room for in the current context, for all threads; 0: there
 * is room for all of them. */
int64_t vgpu_local_of_graphs(void);

#endif
