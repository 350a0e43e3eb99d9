/*
 * Graphs: nodes that launch kernels, copy, fill, allocate, free, or hold a graph.
 *
 * A graph's allocation has its address from the creation of its node, and memory of the GPU while
 * an executable graph needs it: from the first launch or upload on. Memory is kept until the device
 * is trimmed, and unused memory serves the next graph, if it is large enough.
 */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "module/module.h"

/* What a stream does, or a node of a graph records. */
struct work {
	CUfunction
	    function; /* a function or a kernel, whose code is loaded; NULL: a copy or a fill */
	uint64_t duration_ns; /* CODE_UNSTATED: the default of a launch */
};

struct graph_block {
	struct graph_block *next;
	struct device *device;
	uint64_t id, bytes;
	struct mark ready;
};

/* The memory of an allocation node; exists as long as a node or an executable graph uses it. */
struct graph_memory {
	struct graph_memory *next;
	unsigned int users;
	struct device *device;
	struct range *range;
	struct graph_block *block; /* NULL: no memory of the GPU */
	bool live;		   /* a launch allocated it, and it has not been freed */
	bool freed_inside;	   /* by a node of its own graph */
	bool wanted;		   /* by a launch that is about to begin */
	struct mark done;	   /* the last work that may use it */
};

struct node {
	struct object object;
	struct graph *graph;
	int type;
	struct work work;
	struct graph_memory *memory; /* of allocation and free nodes */
	struct graph *child;
};

struct graph {
	struct object object;
	struct node **nodes; /* in the order in which they were added: each after those before it */
	size_t count;
	bool owned;	   /* by a node, or by an executable graph of it: not the program's */
	struct exec *exec; /* of a graph with memory there is one at a time */
};

struct exec {
	struct object object;
	struct graph *source; /* NULL once it no longer exists */
	struct step {
		int type;
		CUgraphNode node; /* of the graph that it was made from */
		struct work work;
		struct graph_memory *memory;
	} *steps;
	size_t count;
	uint64_t flags;
	struct mark done;
};

/* work.c */
/*
 * Submits the work, or records it in a node of that type if the stream captures. Called without the
 * lock; waits while the context's channel is full.
 */
CUresult work_submit(const struct work *work, int node_type, CUstream stream);

/* graph.c */
struct graph *graph_new(void);
void graph_free(struct graph *graph);
bool graph_has_memory(const struct graph *graph);
struct node *graph_add(struct graph *graph, int type);
CUresult graph_add_alloc(struct graph *graph, struct device *device, uint64_t bytes,
			 struct node **out);
CUresult graph_add_free(struct graph *graph, uint64_t address, struct node **out);

/* graph_memory.c; the lock is held, unless stated otherwise. */
struct graph_memory *graph_memory_new(struct device *device, uint64_t bytes);
void graph_memory_release(struct graph_memory *memory);
/* Frees an existing allocation once `ready` is reached; false if there is none. */
bool graph_memory_free(struct graph_memory *memory, const struct mark *ready);
/* Allocates GPU memory to each of the exec's allocations that has none. Without the lock. */
CUresult graph_memory_back(CUgraphExec handle);
/* Takes what the device's graphs do not use and adds it to `gone`. */
void graph_memory_trim(struct device *device, struct graph_block **gone);
/* The same, used or not: the device is reset. */
void graph_memory_forget(struct device *device, struct graph_block **gone);
/* Without the lock: the memory is the GPU's again. */
void graph_blocks_give_back(struct graph_block *gone);

/* launch.c, with the lock: a kernel with these parameters. */
struct work kernel_work(const CUDA_KERNEL_NODE_PARAMS *kernel);

/* capture.c */
struct node *capture_add(struct stream *stream, int type);
struct graph *capture_graph(const struct stream *stream);
void capture_forget(struct context *context);
void capture_end_on(struct stream *stream);

#endif
