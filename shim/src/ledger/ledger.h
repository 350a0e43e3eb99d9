/*
 * The ledger of the memory that this process is charged for: (kind, key) -> {bytes, GPU, context}.
 *
 * The ledger does not depend on CUDA or the shared region. The caller defines what a key means. Any
 * thread may call these functions. A fork child starts with an empty ledger, because memory and
 * charges remain its parent's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ledger/charge.h"
#include "vgpu/contract.h"

enum vgpu_ledger_put {
	VGPU_LEDGER_ADDED,
	VGPU_LEDGER_REPLACED, /* the driver had freed the key's old memory without a hooked call */
	VGPU_LEDGER_NO_MEMORY,
};

/* Enter a charge. If the key is known, its old charge is written to `replaced`, and the result is
 * REPLACED. If `replaced` is NULL, a known key keeps its old charge. */
enum vgpu_ledger_put vgpu_ledger_put(enum vgpu_kind kind, uint64_t key, struct vgpu_charge charge,
				     struct vgpu_charge *replaced);

/* Remove a key's entry, and write its charge to `charge`. If `charge` is NULL, only test whether
 * there is an entry. False: the key is unknown. */
bool vgpu_ledger_take(enum vgpu_kind kind, uint64_t key, struct vgpu_charge *charge);

/* Remove all entries of a context. `bytes` gets their sums for each GPU. Entries with a hold are
 * not in the sums; instead `let_go` is called with each hold. `context` is not 0. */
void vgpu_ledger_forget(uint32_t context, uint64_t bytes[VGPU_ENVIRONMENT_MAX_GPUS],
			void (*let_go)(uint32_t hold));
