/*
 * The memory that this process holds and is charged for: (kind, key) -> {bytes, GPU, context}.
 *
 * Independent of CUDA and of the shared region; the caller that enters a key defines its meaning.
 * Safe from any thread. A fork child starts with an empty ledger: the driver's memory is its
 * parent's, and so is the charge.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/contract.h"

enum vgpu_ledger_put {
	VGPU_LEDGER_ADDED,
	VGPU_LEDGER_REPLACED, /* the key was known: the driver freed it without a hooked call */
	VGPU_LEDGER_NO_MEMORY,
};

/* Enter a charge. For an entry replaced, `replaced` is its old charge; if that is NULL a known key
 * stays as it is, and the result is REPLACED. */
enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced);

/* Take an entry out, or if `charge` is NULL test for it; false if the key is unknown. */
bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
static inline bool vgpu_ledger_has(enum vgpu_kind kind, uint64_t key)
{
	return vgpu_ledger_take(kind, key, NULL);
}

/* Take out all entries of a context (not 0): `bytes` has their sum on each GPU, except for shared
 * ones, each of whose holds is released. */
void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS],
			void (*let_go)(uint32_t hold));
