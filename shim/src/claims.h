/*
 * Physical memory and what this process holds it by: handles, mappings, bindings to multicast
 * objects, tiles of arrays, exported descriptors; and memory of other interfaces, held by its
 * import and by what is mapped of it. Each of them is a claim; the charge lasts as long as the last
 * one.
 *
 * A claim is made before the driver is called and kept or dropped when it has answered; to give one
 * up it is taken out before the call and settled after it. So memory that the driver holds is never
 * without its charge, whatever other threads do meanwhile, and a value that the driver gives out
 * again is a new one here. Knows no driver calls. A fork child starts with none.
 *
 * Claims and memories are numbers; 0 is none. There is room for VGPU_CLAIMS of each; beyond them
 * nothing new is held, and the wrappers answer CUDA_ERROR_OUT_OF_MEMORY.
 */
#ifndef VGPU_CLAIMS_H
#define VGPU_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "admission.h"

enum { VGPU_CLAIMS = 1 << 18 };

/* In place of a device: what takes none's memory, and may be a multicast object. */
enum { VGPU_MULTICAST = -1 };

enum vgpu_claim_kind {
	VGPU_CLAIM_HANDLE = 1, /* key: the handle; a claim per reference */
	VGPU_CLAIM_MAPPING,    /* key: the address; extent: bytes */
	VGPU_CLAIM_BINDING,    /* key: offset in the owner, a multicast object; extent: bytes */
	VGPU_CLAIM_TILE,       /* key: which part of the owner, an array; extent: its context */
	VGPU_CLAIM_EXPORT,     /* key: a file descriptor; extent, owner: which file it was */
	VGPU_CLAIM_EXTERNAL,   /* key: the import's handle; extent: its context */
	VGPU_CLAIM_VIEW,       /* of an import; key: address or mipmap; extent: its context */
	VGPU_CLAIM_KINDS,
};

struct vgpu_claim_to {
	enum vgpu_claim_kind kind;
	uint64_t key, extent, owner;
};

/* New memory with the reservation as its charge, `device` as the driver numbers it, and one claim.
 * 0: no room; nothing changed. */
uint32_t vgpu_claim_new(const struct vgpu_reservation *charge, CUdevice device);

/* One more claim on the memory that a handle or an import names, or, as a list, on each that is
 * mapped in a range. False: no room. 0: nothing is known of it, and the driver alone answers. */
bool vgpu_claim_handle(uint64_t handle, uint32_t *claim);
bool vgpu_claim_external(uint64_t import, uint32_t *claim);
bool vgpu_claim_range(uint64_t address, uint64_t bytes, uint32_t *list);

/* The number of the memory that a handle names; 0: not known. */
uint32_t vgpu_memory_named(uint64_t handle);

/* The driver has answered: CUDA_SUCCESS keeps all claims of the list, anything else drops them. */
void vgpu_claim_end(uint32_t list, CUresult driver_said, struct vgpu_claim_to to);

/* Takes claims out, as a list: one to a handle; the mappings within a range; the bindings within a
 * part of a multicast object, of memory on one device; the tile of a key; the tiles of an array; an
 * import; one to a descriptor; a view of an import, which is freed like any memory, and of next to
 * no cost where there is none.
 */
uint32_t vgpu_take_handle(uint64_t handle);
uint32_t vgpu_take_mappings(uint64_t address, uint64_t bytes);
uint32_t vgpu_take_bindings(uint32_t multicast, CUdevice device, uint64_t offset, uint64_t bytes);
uint32_t vgpu_take_tile(uint64_t key);
uint32_t vgpu_take_tiles_of_array(uint64_t array);
uint32_t vgpu_take_external(uint64_t import);
uint32_t vgpu_take_export(int fd);
extern bool vgpu_any_view;
uint32_t vgpu_take_known_view(uint64_t key);
static inline uint32_t vgpu_take_view(uint64_t key)
{
	return __atomic_load_n(&vgpu_any_view, __ATOMIC_RELAXED) ? vgpu_take_known_view(key) : 0;
}

/* The driver has answered: CUDA_SUCCESS ends the claims of the list, anything else restores them.
 */
void vgpu_settle_claims(uint32_t list, CUresult driver_said);

/* The context has ended: with it its tiles, imports and views. */
void vgpu_claims_end_context(uint32_t context);

/* A descriptor that the driver has exported, here or elsewhere, holds the memory as long as it is
 * open. */
void vgpu_keep_export(uint32_t claim, int fd);
/* It has been imported again. The memory of that charge that nothing but the descriptor holds is
 * this, or its descriptor was closed: one more claim on it. 0: there is none. */
uint32_t vgpu_claim_export(int fd, int card, uint64_t bytes);
/* The driver has made a descriptor of this number: what had it before is closed. */
void vgpu_forget_exports(int fd);
/* Nobody tells when a descriptor is closed: look. True where memory may have come free. The second
 * looks, for the sake of figures that are up to date, where there are `few` or it has not looked
 * for twenty times as long as that takes. */
enum { VGPU_FEW_FOR_A_RELEASE = 64, VGPU_FEW_FOR_A_REPORT = 1024 };
bool vgpu_drop_closed_exports(void);
void vgpu_drop_closed_exports_if_cheap(uint32_t few);

/* The driver gives this handle to new memory: claims to what it meant before are void. */
void vgpu_forget_handle(uint64_t handle);

#endif
