/*
 * Graphs: nodes that launch kernels, copy, fill, allocate, free, or hold a graph.
 *
 * A graph's allocation has its address when its node is made. It has GPU memory from the first
 * launch or upload of an executable graph on. The memory is kept until the device is trimmed. Until
 * then, unused memory serves later graphs that fit into it.
 */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "module/module.h"

/* One operation, which a stream executes or a graph's node records. */
struct work {
	CUfunction function;  /* a function or kernel, whose code is loaded; NULL: a copy or fill */
	uint64_t duration_ns; /* CODE_UNSTATED: the default duration */
};

struct graph_block {
	struct graph_block *next;
	struct device *device;
	uint64_t id, bytes;
	struct mark ready;
};

/* The memory of an allocation node. It exists while a node or an executable graph uses it. */
struct graph_memory {
	struct graph_memory *next;
	unsigned int users;
	struct device *device;
	struct range *range;
	struct graph_block *block; /* NULL: the node has no GPU memory now */
	bool live;		   /* allocated by a launch and not freed */
	bool freed_inside;	   /* freed by a node of its own graph */
	bool wanted;		   /* a launch is about to use the memory */
	struct mark done;	   /* reached after the last work that may use the memory */
};

struct node {
	struct object object;
	struct graph *graph;
	int type;
	struct work work;
	struct graph_memory *memory; /* used by allocation and free nodes */
	struct graph *child;
};

struct graph {
	struct object object;
	struct node **nodes; /* in the order in which they were added, so dependencies come first */
	size_t count;
	bool owned;	   /* a parent graph's node owns it, so the program may not destroy it */
	struct exec *exec; /* a graph with memory has at most one executable graph */
};

struct exec {
	struct object object;
	struct graph *source; /* NULL if the graph no longer exists */
	struct step {
		int type;
		CUgraphNode node; /* the node of `source` */
		struct work work;
		struct graph_memory *memory;
	} *steps;
	size_t count;
	uint64_t flags;
	struct mark done;
};

/* work.c */
/*
 * Submits the work to the stream, or if the stream captures, records it in a node of that type.
 * Called without the lock. Waits while the stream's queue is full.
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

/* graph_memory.c: called with the lock, unless stated otherwise. */
struct graph_memory *graph_memory_new(struct device *device, uint64_t bytes);
void graph_memory_release(struct graph_memory *memory);
/* Frees an allocation once `ready` is reached. Returns false if no launch allocated it. */
bool graph_memory_free(struct graph_memory *memory, const struct mark *ready);
/* Gives GPU memory to the exec's allocations that have none. Called without the lock. */
CUresult graph_memory_back(CUgraphExec handle);
/* Takes blocks that the device's graphs do not use, and adds them to `gone`. */
void graph_memory_trim(struct device *device, struct graph_block **gone);
/* Like graph_memory_trim, but takes all blocks, because the device is reset. */
void graph_memory_forget(struct device *device, struct graph_block **gone);
/* Returns the blocks to the GPU. Called without the lock. */
void graph_blocks_give_back(struct graph_block *gone);

/* launch.c: returns the work of a kernel node. Called with the lock. */
struct work kernel_work(const CUDA_KERNEL_NODE_PARAMS *kernel);

/* capture.c */
struct node *capture_add(struct stream *stream, int type);
struct graph *capture_graph(const struct stream *stream);
void capture_forget(struct context *context);
void capture_end_on(struct stream *stream);

#endif
