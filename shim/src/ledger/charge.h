/* What the ledger's entries consist of: the kind of a key, and the charge. */
#pragma once

#include <stdint.h>

/* The GPU and the context to which memory belongs. */
struct vgpu_place {
	int gpu;	  /* index in the grant, or one of region.h's values */
	uint32_t context; /* generation of the context; 0: no known context */
};

/* The kind of a key. Keys of different kinds may be equal. */
enum vgpu_kind {
	VGPU_KIND_MEMORY = 1, /* device memory; the key is its address */
	VGPU_KIND_BLOCK,      /* a block that allocations share; the key is its number (blocks.h) */
	VGPU_KIND_ARRAY,      /* CUarray */
	VGPU_KIND_MIPMAP,     /* CUmipmappedArray */
	VGPU_KIND_IPC,	      /* an opening of another process's memory (cuda_ipc.c) */
	VGPU_KIND_CONTEXT,    /* a context's own memory; the key is its generation */
};

struct vgpu_charge {
	uint64_t bytes;
	int32_t gpu;	  /* index in the grant */
	uint32_t context; /* the context's generation, whose end ends the charge; 0: none */
	uint32_t hold;	  /* if not 0, that shared slot is charged instead (shared.h) */
};
