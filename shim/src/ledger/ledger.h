/*
 * What this process holds and is charged for: (kind, key) -> {bytes, GPU, context}.
 *
 * Knows neither CUDA nor the shared region; what a key means is the business of whoever enters it.
 * Safe from any thread. A fork child starts with an empty ledger: the driver's memory is its
 * parent's, and so is the charge.
 */
#ifndef VGPU_LEDGER_H
#define VGPU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/contract.h"

/* What a key names. Each kind has keys of its own. */
enum vgpu_kind {
	VGPU_KIND_MEMORY = 1, /* device memory by its address */
	VGPU_KIND_BLOCK,      /* device memory that many allocations share: blocks.h alone */
	VGPU_KIND_ARRAY,      /* CUarray */
	VGPU_KIND_MIPMAP,     /* CUmipmappedArray */
	VGPU_KIND_IPC,	      /* an address that another process's memory is mapped at */
	VGPU_KIND_IMPORT,     /* an address that another process's pool is imported at */
	VGPU_KIND_EXPORT,     /* an address of our own pool that another process has imported */
	VGPU_KIND_CONTEXT,    /* the life of a context, for what it takes by itself */
};

struct vgpu_charge {
	uint64_t bytes;
	int32_t gpu;	  /* index in the grant */
	uint32_t context; /* id of the context that dies with it; 0: none does */
	uint32_t hold;	  /* shared.h's; not 0: the bytes are charged there, not here */
};

enum vgpu_ledger_put {
	VGPU_LEDGER_ADDED,
	VGPU_LEDGER_REPLACED, /* the key was known: the driver freed it behind our back */
	VGPU_LEDGER_NO_MEMORY,
};

/* Enter a charge. Of an entry replaced, `replaced` tells what it held; where that is NULL a key
 * that is known stays as it is, and the result is REPLACED. */
enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced);

/* Take an entry out, or where `charge` is NULL ask for it; false where the key is unknown. */
bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
static inline bool vgpu_ledger_has(enum vgpu_kind kind, uint64_t key)
{
	return vgpu_ledger_take(kind, key, NULL);
}

/* Take out all entries of a context (not 0): `bytes` has what they came to on each GPU, but for
 * those that are shared, each of whose holds is let go of. */
void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_MOST_GPUS],
			void (*let_go)(uint32_t hold));

/* Entries now in the ledger. */
uint64_t vgpu_ledger_count(void);

#endif
