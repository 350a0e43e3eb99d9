/*
 * Physical memory and the claims on it: handles, mappings, bindings to multicast objects, tiles of
 * arrays; for memory of other interfaces, its import and whatever is mapped of it. The charge lasts
 * as long as the last claim.
 *
 * A claim is made before the driver call and kept or dropped after it; to release one, it is taken
 * out before the call and settled after it. So memory that the driver holds is never without its
 * charge, whatever other threads do meanwhile, and a value that the driver gives out again is a new
 * one here. Makes no driver calls. A fork child starts with none.
 *
 * Claims and memories are numbers; 0 is none. The table has VGPU_CLAIMS entries for each; when it
 * is full no new claim is made, and the wrappers return CUDA_ERROR_OUT_OF_MEMORY.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "charge/admission.h"
#include "region/shared.h"

enum { VGPU_CLAIMS = 1 << 18 };

/* In place of a device: a multicast object, which takes no memory. */
enum { VGPU_MULTICAST = -1 };

/* The charge for one physical memory. */
struct vgpu_physical {
	struct vgpu_reservation charge; /* this process's; 0 bytes where it is shared or foreign */
	CUdevice device;		/* as the driver numbers it, or VGPU_MULTICAST */
	vgpu_hold hold;			/* the shared slot that is charged instead; 0: none */
	uint64_t key;			/* of the shared slot */
	bool foreign; /* imported from outside the container: each mapping is charged */
};

enum vgpu_claim_kind {
	VGPU_CLAIM_HANDLE = 1, /* key: the handle; a claim per reference */
	VGPU_CLAIM_MAPPING,    /* key: the address; extent: bytes */
	VGPU_CLAIM_BINDING,  /* key: offset in the owner, the handle of a multicast object; extent:
				bytes */
	VGPU_CLAIM_TILE,     /* key: which part of the owner, an array; extent: its context */
	VGPU_CLAIM_EXTERNAL, /* key: the import's handle; extent: its context */
	VGPU_CLAIM_VIEW,     /* of an import; key: address or mipmap; extent: its context */
	VGPU_CLAIM_KINDS,
};

struct vgpu_claim_to {
	enum vgpu_claim_kind kind;
	bool one_of_several; /* else claims that are there ended by calls without hooks */
	uint64_t key, extent, owner;
};

/* New memory, and one claim on it. 0: the table is full; nothing changed. */
uint32_t vgpu_claim_new(const struct vgpu_physical *memory);

/* The same for memory of that size, reserved first, as admission.h's vgpu_reserve_at. */
CUresult vgpu_claim_reserved(struct vgpu_place place, uint64_t bytes, struct vgpu_physical *memory,
			     uint32_t *claim);

/* One more claim on the memory that a handle or an import names, or, as a list, on each that is
 * mapped in a range. False: the table is full. 0: the memory is unknown; only the driver is
 * called. */
bool vgpu_claim_known(enum vgpu_claim_kind kind, uint64_t key, uint32_t *claim);
bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list);
static inline bool vgpu_claim_handle(uint64_t handle, uint32_t *claim)
{
	return vgpu_claim_known(VGPU_CLAIM_HANDLE, handle, claim);
}

/* The properties of the memory that the claim is on. */
struct vgpu_physical vgpu_claimed_physical(uint32_t claim);

/* The memory of the claim is charged to that shared slot from now on, and not to this process.
 * False: another thread has shared it meanwhile. */
bool vgpu_claimed_share(uint32_t claim, vgpu_hold hold, uint64_t key);

/* After the driver call: CUDA_SUCCESS keeps all claims of the list, any other code drops them. The
 * object that memory was bound to is a multicast object. */
void vgpu_claim_end(uint32_t list, CUresult driver_result, struct vgpu_claim_to to);

/* Take claims out, as a list: one of that kind and key; the mappings within a range; the bindings
 * within a part of a multicast object, of memory on one device; the tiles of an array; a view of an
 * import, which is freed like any memory (negligible cost where there is none). */
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

/* After the driver call: CUDA_SUCCESS ends the claims of the list, any other code restores them. */
void vgpu_settle_claims(uint32_t list, CUresult driver_result);

/* The context has ended, and with it its tiles, imports and views. */
void vgpu_claims_end_context(uint32_t context);
