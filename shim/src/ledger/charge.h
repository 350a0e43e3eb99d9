/* The fields of the ledger's entries: the kind of a key, and the charge. */
#pragma once

#include <stdint.h>

/* The GPU and the context to which memory belongs. */
struct vgpu_place {
	int gpu;	  /* index in the grant, or one of region.h's values */
	uint32_t context; /* generation of the context; 0: no known context */
};

/* The kind of a key. Different kinds may have the same key. */
enum vgpu_kind {
	VGPU_KIND_MEMORY = 1, /* device memory by its address */
	VGPU_KIND_BLOCK,      /* device memory shared by allocations (blocks.h) */
	VGPU_KIND_ARRAY,      /* CUarray */
	VGPU_KIND_MIPMAP,     /* CUmipmappedArray */
	VGPU_KIND_IPC,	      /* address of an opening of a memory handle */
	VGPU_KIND_CONTEXT,    /* a context's generation: its own memory */
};

struct vgpu_charge {
	uint64_t bytes;
	int32_t gpu;	  /* index in the grant */
	uint32_t context; /* generation whose end ends the charge; 0: none */
	uint32_t hold;	  /* not 0: the shared slot charged instead (shared.h) */
};
