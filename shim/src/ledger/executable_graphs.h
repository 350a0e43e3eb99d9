/*
 * Executable graphs that allocate: how much memory each may take on each GPU.
 *
 * These functions make no driver call. Most graphs allocate nothing and are not in the table. The
 * table is bounded: when it is full, no further graph that allocates is instantiated. A fork child
 * begins with an empty table.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum { VGPU_EXECUTABLE_GRAPHS = 2048 };

struct vgpu_graph_needs {
	uint64_t gpus; /* bit mask of the GPUs on which it allocates */
	uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	uint32_t trims[VGPU_ENVIRONMENT_MAX_GPUS]; /* each GPU's trims before this was read */
};

/* Enter a graph. False: the table is full. */
bool vgpu_executable_graphs_put(uint64_t exec, const struct vgpu_graph_needs *bounds);
/* Remove a graph. False: it is unknown, and `bounds` is unchanged. */
bool vgpu_executable_graphs_remove(uint64_t exec, struct vgpu_graph_needs *bounds);

/* The bytes that a launch may still take on each GPU: 0 where the graph was launched after the last
 * trim. False: the graph allocates nothing. */
bool vgpu_executable_graphs_find(uint64_t exec, struct vgpu_graph_needs *bounds);

/* Read the counts of trims, before the launch of a graph that is not entered yet. */
void vgpu_executable_graphs_count_trims(struct vgpu_graph_needs *bounds);

/* Note that the graph was launched after `bounds` was read: it holds all memory that it needs,
 * unless the GPU was trimmed in between. */
void vgpu_executable_graphs_launched(uint64_t exec, const struct vgpu_graph_needs *bounds);

/* The driver released graph memory of the GPU, so any graph may have to take it again. */
void vgpu_executable_graphs_trimmed(int gpu);
