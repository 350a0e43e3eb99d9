/*
 * What this process has allocated and is charged for: address -> {bytes, card}.
 *
 * Knows neither CUDA nor the shared region. Safe from any thread. A fork child starts with an empty
 * ledger: the driver's memory is its parent's, and so is the charge.
 */
#ifndef VGPU_LEDGER_H
#define VGPU_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

struct vgpu_charge {
	uint64_t bytes;
	int32_t card; /* index in the grant */
};

enum vgpu_ledger_put {
	VGPU_LEDGER_ADDED,
	VGPU_LEDGER_REPLACED, /* the address was known: the driver freed it behind our back */
	VGPU_LEDGER_NO_MEMORY,
};

/* Enter a charge; `address` is not 0. Of an entry replaced, `replaced` tells what it held. */
enum vgpu_ledger_put vgpu_ledger_put(uint64_t address, struct vgpu_charge charge,
				     struct vgpu_charge *replaced);

/* Take an entry out; false where the address is unknown. */
bool vgpu_ledger_take(uint64_t address, struct vgpu_charge *charge);

/* Entries now in the ledger. */
uint64_t vgpu_ledger_count(void);

#endif
