/*
 * CUDA arrays: opaque images, laid out in tiles, of one level or many.
 *
 * array_layout.c is arithmetic alone; array.c makes and destroys; array_tiles.c serves arrays that
 * have no memory of their own. No data is stored: the GPU is charged the layout's size.
 */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "memory/vmm.h"

#define ARRAY_LEVELS   18
#define LINE_BYTES     512   /* of rows, and alignment */
#define ARRAY_TILE_CAP 65536 /* bytes of a sparse array's tile */

struct array_layout {
	unsigned int element_bytes; /* of a texel, or of a compressed block */
	unsigned int levels;
	uint64_t bytes; /* on the GPU */
	struct {
		unsigned int width, height, depth; /* a sparse tile, in texels */
	} tile;
};

/* False if the description is not one of an array. A 1D or 2D array has no Depth. */
bool array_layout(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels,
		  struct array_layout *out);

struct tile;

struct array {
	struct object object; /* OBJECT_ARRAY or OBJECT_MIPMAP */
	struct context *context;
	uint64_t id; /* the daemon's; 0 if it has no memory of its own */
	CUDA_ARRAY3D_DESCRIPTOR desc;
	struct array_layout layout;
	struct array *mipmap;		    /* of a level's array */
	struct array *levels[ARRAY_LEVELS]; /* of a mipmap: those requested */
	struct tile *tiles;
	struct physical *external; /* another interface's memory, which it lies in and holds */
};

/* A new object, its memory taken; the lock is not held before or after. */
CUresult array_make(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, enum object_kind kind,
		    struct physical *external, void **handle);
void tiles_forget(struct array *array);
void arrays_forget(struct context *context);
/* Imports of other interfaces' memory, and buffers in them. */
void externals_forget(struct context *context);

#endif
