/*
 * Physical memory, and the claims that keep it allocated.
 *
 * Each of these is a claim on a memory: a handle, a mapping, a binding to a multicast object, a
 * tile of an array, an import from another interface, and a view mapped from such an import. A
 * memory stays charged until its last claim ends.
 *
 * A claim is made before the driver call, and kept or dropped after the call. To end a claim, take
 * it out of the table before the driver call, and settle it after the call. So memory that the
 * driver holds is always charged, whatever other threads do meanwhile. These functions make no
 * driver calls. A fork child starts without claims.
 *
 * Claims and memories are identified by numbers, and 0 means none. The table has VGPU_CLAIMS
 * entries for each. When it is full no claim can be made, and the wrappers return
 * CUDA_ERROR_OUT_OF_MEMORY.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"
#include "region/shared.h"

enum { VGPU_CLAIMS = 1 << 18 };

/* In the field `device`: the entry is a multicast object, which takes no memory itself. */
enum { VGPU_MULTICAST = -1 };

/* The charge for one physical memory. */
struct vgpu_physical {
	struct vgpu_reservation charge; /* this process's charge; 0 bytes if shared or foreign */
	CUdevice device;		/* the driver's ordinal, or VGPU_MULTICAST */
	vgpu_hold hold;			/* the shared slot that is charged instead; 0: none */
	uint64_t key;			/* the key by which importers find the shared slot */
	bool foreign; /* imported from outside the container: each mapping is charged */
};

enum vgpu_claim_kind {
	VGPU_CLAIM_HANDLE = 1, /* key: the handle; one claim per reference */
	VGPU_CLAIM_MAPPING,    /* key: the address; extent: bytes */
	VGPU_CLAIM_BINDING,    /* owner: a multicast object; key: offset in that; extent: bytes */
	VGPU_CLAIM_TILE, /* owner: an array; key: hash of the part; extent: the array's context */
	VGPU_CLAIM_EXTERNAL, /* key: the import's handle; extent: the import's context */
	VGPU_CLAIM_VIEW,     /* key: the view's address or mipmap; extent: the view's context */
	VGPU_CLAIM_KINDS,
};

struct vgpu_claim_to {
	enum vgpu_claim_kind kind;
	bool one_of_several; /* false: drop older claims of the same key */
	uint64_t key, extent, owner;
};

/* Enter a new memory, and return a claim on it. 0: the table is full, and nothing changed. */
uint32_t vgpu_claim_new(const struct vgpu_physical *memory);

/* Reserve `bytes`, and then enter a new memory. CUDA_ERROR_OUT_OF_MEMORY: either failed. */
CUresult vgpu_claim_reserved(struct vgpu_place place, uint64_t bytes, struct vgpu_physical *memory,
			     uint32_t *claim);

/* Make one more claim on the memory of a known handle or import, or on each memory that is mapped
 * in the range. False: the table is full. If the claim or list is 0, the memory is unknown, and the
 * wrapper only calls the driver. */
bool vgpu_claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim);
bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list);
static inline bool vgpu_claim_handle(uint64_t handle, uint32_t *claim)
{
	return vgpu_claim_known(VGPU_CLAIM_HANDLE, handle, claim);
}

/* The charge and the properties of the memory that is claimed. */
struct vgpu_physical vgpu_claimed_physical(uint32_t claim);

/* Note that the memory is charged to that shared slot, and no longer to this process. False:
 * another thread has shared the memory already. */
bool vgpu_claimed_share(uint32_t claim, vgpu_hold hold, uint64_t key);

/* Call it after the driver call. On CUDA_SUCCESS all claims of the list are kept, with the kind and
 * key in `to`. On any other result they are dropped. If `to` is a binding, note that its owner is a
 * multicast object. */
void vgpu_claim_end(uint32_t list, CUresult driver_result, struct vgpu_claim_to to);

/* Take claims out of the table, and return them as a list. vgpu_take_bindings takes the bindings of
 * one device's memory in a part of a multicast object. vgpu_take_view costs nearly nothing if the
 * process never made a view. */
uint32_t vgpu_take_claim(enum vgpu_claim_kind kind, uint64_t key);
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes);
uint32_t vgpu_take_bindings(uint64_t multicast, CUdevice device, uint64_t offset, uint64_t bytes);
uint32_t vgpu_take_tiles_of_array(uint64_t array);
extern bool vgpu_any_view;
static inline uint32_t vgpu_take_view(uint64_t key)
{
	return __atomic_load_n(&vgpu_any_view, __ATOMIC_RELAXED)
		   ? vgpu_take_claim(VGPU_CLAIM_VIEW, key)
		   : 0;
}

/* Call it after the driver call. CUDA_SUCCESS ends the listed claims, any other result restores
 * them. */
void vgpu_settle_claims(uint32_t list, CUresult driver_result);

/* End the claims of a context's tiles, imports and views, after the context has ended. */
void vgpu_claims_end_context(uint32_t context);
