/*
 * A table of the executable graphs that allocate: how much memory each may take on each GPU.
 *
 * These functions make no driver call. Most graphs allocate nothing, and are not in the table. When
 * the table is full, no further graph that allocates can be instantiated. A fork child begins with
 * an empty table. A trim is cuDeviceGraphMemTrim or any other release of a GPU's graph memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

enum { VGPU_EXECUTABLE_GRAPHS = 2048 };

struct vgpu_graph_needs {
	uint64_t gpus; /* bit mask of the GPUs on which the graph allocates */
	uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS];
	uint32_t
	    trims[VGPU_ENVIRONMENT_MAX_GPUS]; /* each GPU's count of trims when this was read */
};

/* Enter a graph. False: no entry is free. */
bool vgpu_executable_graphs_put(uint64_t exec, const struct vgpu_graph_needs *bounds);
/* Remove a graph. False: the graph is unknown, and `bounds` is unchanged. */
bool vgpu_executable_graphs_remove(uint64_t exec, struct vgpu_graph_needs *bounds);

/* The bytes that a launch may still take on each GPU. They are 0 if the graph was launched there
 * after the GPU's last trim. False: the graph allocates nothing. */
bool vgpu_executable_graphs_find(uint64_t exec, struct vgpu_graph_needs *bounds);

/* Read the counts of trims into `bounds`, before the launch of a graph that is not entered yet. */
void vgpu_executable_graphs_count_trims(struct vgpu_graph_needs *bounds);

/* Note that the graph was launched after `bounds` was read. It now holds all its memory, except on
 * GPUs that were trimmed since `bounds` was read. */
void vgpu_executable_graphs_launched(uint64_t exec, const struct vgpu_graph_needs *bounds);

/* Count a trim of the GPU: later launches of any graph may take memory again. */
void vgpu_executable_graphs_trimmed(int gpu);
