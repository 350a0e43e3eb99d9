/* Fields of the ledger's entries: the kind of a key, and the charge for it. */
#pragma once

#include <stdint.h>

/* Whose memory it is. */
struct vgpu_place {
	int gpu;	  /* index in the grant, or one of region.h's values */
	uint32_t context; /* one generation of a context; 0: no known context */
};

/* The type of a key. Each kind has keys of its own. */
enum vgpu_kind {
	VGPU_KIND_MEMORY = 1, /* device memory by its address */
	VGPU_KIND_BLOCK,      /* device memory that many allocations share: blocks.h alone */
	VGPU_KIND_ARRAY,      /* CUarray */
	VGPU_KIND_MIPMAP,     /* CUmipmappedArray */
	VGPU_KIND_IPC,	      /* an address at which another process's memory is mapped */
	VGPU_KIND_CONTEXT,    /* the generation of a context, for what it takes by itself */
};

struct vgpu_charge {
	uint64_t bytes;
	int32_t gpu;	  /* index in the grant */
	uint32_t context; /* id of the context whose end ends the charge; 0: none */
	uint32_t hold;	  /* shared.h's; not 0: the bytes are charged there, not here */
};
