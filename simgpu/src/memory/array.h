/*
 * CUDA arrays: opaque images of one level or several, laid out in tiles.
 *
 * array_layout.c computes sizes. array.c makes and destroys arrays. array_tiles.c serves arrays
 * without their own memory. An array's size is charged on the GPU, but no data is stored.
 */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "memory/vmm.h"

#define ARRAY_LEVELS   18
#define LINE_BYTES     512   /* rows have a multiple of these bytes; an array's alignment */
#define ARRAY_TILE_CAP 65536 /* bytes of a sparse array's tile */

struct array_layout {
	unsigned int element_bytes; /* bytes of a texel, or of a compressed block */
	unsigned int levels;
	uint64_t bytes; /* size on the GPU */
	struct {
		unsigned int width, height, depth; /* size of a sparse array's tile in texels */
	} tile;
};

/* Computes the layout. Returns false for an invalid description. 1D and 2D arrays have Depth 0. */
bool array_layout(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels,
		  struct array_layout *out);

struct tile;

struct array {
	struct object object; /* OBJECT_ARRAY or OBJECT_MIPMAP */
	struct context *context;
	uint64_t id; /* the daemon's id of the memory; 0: it has no memory of its own */
	CUDA_ARRAY3D_DESCRIPTOR desc;
	struct array_layout layout;
	struct array *mipmap;		    /* the mipmap of a level's array, else NULL */
	struct array *levels[ARRAY_LEVELS]; /* levels of a mipmap that were requested */
	struct tile *tiles;
	struct physical *external; /* imported memory in which the array lies, else NULL */
};

/* Makes an array and allocates its memory. Called and returns without the lock. */
CUresult array_make(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, enum object_kind kind,
		    struct physical *external, void **handle);
void tiles_forget(struct array *array);
void arrays_forget(struct context *context);
/* Ends the context's imports of other interfaces' memory, and the buffers in the imports. */
void externals_forget(struct context *context);

#endif
