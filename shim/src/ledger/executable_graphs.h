/*
 * Executable graphs that allocate: how much each may take of each GPU.
 *
 * Makes no driver call. Most graphs allocate nothing and are not here. The table is bounded: when
 * it is full, a further graph that allocates is not instantiated. A fork child begins with an empty
 * one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum { VGPU_EXECUTABLE_GRAPHS = 2048 };

struct vgpu_graph_needs {
	uint64_t gpus; /* bit mask of the GPUs on which it allocates */
	uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	uint32_t trims[VGPU_ENVIRONMENT_MAX_GPUS]; /* of each GPU, until that was queried */
};

/* False where the table is full. */
bool vgpu_executable_graphs_put(uint64_t exec, const struct vgpu_graph_needs *bounds);
/* False, and no output: unknown. */
bool vgpu_executable_graphs_remove(uint64_t exec, struct vgpu_graph_needs *bounds);

/* Bytes that a launch may still take: none of a GPU where it was launched since its last trim.
 * False: the graph allocates nothing. */
bool vgpu_executable_graphs_find(uint64_t exec, struct vgpu_graph_needs *bounds);

/* Counts trims before the launch of an executable graph that is not entered yet. */
void vgpu_executable_graphs_count_trims(struct vgpu_graph_needs *bounds);

/* The executable graph has been launched since the trims were counted: the GPU has allocated all
 * that it needs, unless there was a trim in between. */
void vgpu_executable_graphs_launched(uint64_t exec, const struct vgpu_graph_needs *bounds);

/* The driver released graph memory of the GPU: any graph may have to take it again. */
void vgpu_executable_graphs_trimmed(int gpu);
