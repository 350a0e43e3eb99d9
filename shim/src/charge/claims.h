/*
 * Physical memory, and the claims that keep it allocated.
 *
 * A claim is a handle, a mapping, a binding to a multicast object, or a tile of an array. For
 * memory of other interfaces it is the import, or a view mapped from the import. A memory stays
 * charged until its last claim ends.
 *
 * A claim is made before the driver call, and kept or dropped after it. To release one, it is taken
 * out before the driver call and settled after it. So memory that the driver holds is always
 * charged, whatever other threads do meanwhile. A handle or address that the driver gives out again
 * is a new claim. These functions make no driver calls. A fork child starts with none.
 *
 * Claims and memories are numbers, and 0 means none. The table has VGPU_CLAIMS entries for each.
 * When it is full no claim can be made, and the wrappers return CUDA_ERROR_OUT_OF_MEMORY.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"
#include "region/shared.h"

enum { VGPU_CLAIMS = 1 << 18 };

/* Stands in place of a device for a multicast object, which takes no memory. */
enum { VGPU_MULTICAST = -1 };

/* The charge for one physical memory. */
struct vgpu_physical {
	struct vgpu_reservation charge; /* of this process; 0 bytes if shared or foreign */
	CUdevice device;		/* the driver's ordinal, or VGPU_MULTICAST */
	vgpu_hold hold;			/* the shared slot that is charged instead; 0: none */
	uint64_t key;			/* by which importers find the shared slot */
	bool foreign; /* imported from outside the container: each mapping is charged */
};

enum vgpu_claim_kind {
	VGPU_CLAIM_HANDLE = 1, /* key: the handle; one claim per reference */
	VGPU_CLAIM_MAPPING,    /* key: the address; extent: bytes */
	VGPU_CLAIM_BINDING,    /* owner: a multicast object; key: offset in it; extent: bytes */
	VGPU_CLAIM_TILE,       /* owner: an array; key: part of it; extent: its context */
	VGPU_CLAIM_EXTERNAL,   /* key: the import's handle; extent: its context */
	VGPU_CLAIM_VIEW,       /* key: address or mipmap; extent: its context */
	VGPU_CLAIM_KINDS,
};

struct vgpu_claim_to {
	enum vgpu_claim_kind kind;
	bool one_of_several; /* else older claims of the same key are dropped */
	uint64_t key, extent, owner;
};

/* Enter a new memory with one claim on it. 0: the table is full, and nothing changed. */
uint32_t vgpu_claim_new(const struct vgpu_physical *memory);

/* The same, after reserving `bytes`. Returns what vgpu_reserve_at returns (admission.h). */
CUresult vgpu_claim_reserved(struct vgpu_place place, uint64_t bytes, struct vgpu_physical *memory,
			     uint32_t *claim);

/* Make one more claim on the memory of a known handle or import, or a list of claims: one for each
 * memory mapped in the range. False: the table is full. A claim of 0: the memory is unknown, and
 * only the driver is to be called. */
bool vgpu_claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim);
bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list);
static inline bool vgpu_claim_handle(uint64_t handle, uint32_t *claim)
{
	return vgpu_claim_known(VGPU_CLAIM_HANDLE, handle, claim);
}

/* The properties of the memory that the claim is on. */
struct vgpu_physical vgpu_claimed_physical(uint32_t claim);

/* From now on charge the memory to that shared slot, and not to this process. False: another thread
 * has shared it already. */
bool vgpu_claimed_share(uint32_t claim, vgpu_hold hold, uint64_t key);

/* After the driver call: CUDA_SUCCESS keeps all claims of the list as `to`, any other code drops
 * them. If `to` is a binding, its owner is known to be a multicast object from now on. */
void vgpu_claim_end(uint32_t list, CUresult driver_result, struct vgpu_claim_to to);

/* Take claims out of the table, as a list. These are: one of that kind and key; the mappings within
 * a range; the bindings within a part of a multicast object to memory of one device; the tiles of
 * an array; a view of an import. The last costs nearly nothing where no view was ever made. */
uint32_t vgpu_take_claim(enum vgpu_claim_kind kind, uint64_t key);
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes);
uint32_t vgpu_take_bindings(uint64_t multicast, CUdevice device, uint64_t offset, uint64_t bytes);
uint32_t vgpu_take_tiles_of_array(uint64_t array);
extern bool vgpu_any_view;
static inline uint32_t vgpu_take_handle(uint64_t handle)
{
	return vgpu_take_claim(VGPU_CLAIM_HANDLE, handle);
}
static inline uint32_t vgpu_take_view(uint64_t key)
{
	return __atomic_load_n(&vgpu_any_view, __ATOMIC_RELAXED)
		   ? vgpu_take_claim(VGPU_CLAIM_VIEW, key)
		   : 0;
}

/* After the driver call: CUDA_SUCCESS ends the listed claims, any other code restores them. */
void vgpu_settle_claims(uint32_t list, CUresult driver_result);

/* The context has ended: end the claims of its tiles, imports and views. */
void vgpu_claims_end_context(uint32_t context);
