/*
 * The ledger of the memory that this process is charged for: (kind, key) -> {bytes, GPU, context}.
 *
 * It is independent of CUDA and of the shared region. The caller defines what a key means. All
 * functions are safe from any thread. A fork child starts with an empty ledger, because the
 * driver's memory and the charge are its parent's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/contract.h"

enum vgpu_ledger_put {
	VGPU_LEDGER_ADDED,
	VGPU_LEDGER_REPLACED, /* the driver had freed the old one without a hooked call */
	VGPU_LEDGER_NO_MEMORY,
};

/* Enter a charge. If the key is known, its old charge is written to `replaced`, and the result is
 * REPLACED. If `replaced` is NULL, a known key keeps its old charge. */
enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced);

/* Take out a key's entry, or only test for it if `charge` is NULL. False: the key is unknown. */
bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);
static inline bool vgpu_ledger_has(enum vgpu_kind kind, uint64_t key)
{
	return vgpu_ledger_take(kind, key, NULL);
}

/* Take out all entries of a context, which is not 0. `bytes` are their sums for each GPU. Shared
 * entries are not in the sums: `let_go` is called with the hold of each. */
void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS],
			void (*let_go)(uint32_t hold));
