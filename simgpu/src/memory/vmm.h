/*
 * Memory that is made, placed and mapped in separate steps: physical allocations, reserved
 * addresses, and the mappings between them.
 *
 * A physical allocation is held by its handles and by pins: each mapping, each binding to a
 * multicast object, each tile of a sparse array. It is freed with the last of them. It belongs to
 * the process, not to a context. The daemon accounts for its bytes. Each mapping has pages of its
 * own: two mappings of one allocation do not show the same data. The caller holds the driver's
 * lock.
 */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "base/driver.h"

#define SHAREABLE_TYPES (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)

/* The unit of addresses and sizes: the GPU's granule, as far as pages allow. */
static inline uint64_t vmm_granule(void)
{
	uint64_t granule = driver.device[0].gpu->granule_bytes;

	return granule > 4096 ? granule : 4096;
}

struct physical {
	struct object object;
	struct device *device; /* NULL: host memory, or a multicast object */
	uint64_t id;	       /* the daemon's, if there is a device */
	uint64_t bytes;
	CUmemAllocationProp prop;
	unsigned int handles, pins;
	bool multicast;
	CUmulticastObjectProp multicast_prop;
	uint64_t devices; /* of a multicast object: ordinals added, a bit each */
	int fd;		  /* of the file that names it in other processes; -1: none */
	struct physical *next_freed;
};

/* The object of a handle that the program holds, or NULL. */
struct physical *physical_get(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle physical_handle(const struct physical *memory);
/* A new object with one handle. */
struct physical *physical_new(uint64_t bytes);
void physical_pin(struct physical *memory);
void physical_unpin(struct physical *memory);
void physical_release(struct physical *memory);
/* Releases the lock and frees with the daemon what has ended meanwhile. */
CUresult physical_leave(CUresult result);
/* The same, and keeps the lock. */
void physical_delete_released(void);

/* The meaning of a location of device memory; CUDA_ERROR_INVALID_VALUE for any other. */
CUresult location_device(const CUmemLocation *location, struct device **device);
bool location_is_host(const CUmemLocation *location);

struct mapping {
	struct range range; /* no context; the id is the daemon's */
	struct physical *memory;
	uint64_t writable; /* by which devices, a bit per ordinal */
};

/* The mapping that holds `address`, or NULL. */
struct mapping *mapping_find(uint64_t address);
/* True if the address belongs to a reservation, mapped or not. */
bool vmm_reserved(uint64_t address);
/* True if all of it is mapped, and the calling thread's current device may use it. */
bool vmm_accessible(uint64_t address, uint64_t bytes);

/* Reserves addresses and maps a piece of the memory there, accessible to every device. */
CUresult buffer_map(struct context *context, struct physical *memory, uint64_t offset,
		    uint64_t bytes, uint64_t *address);
/* Undoes buffer_map; false if `address` is not from it. */
bool buffer_unmap(uint64_t address);
void buffers_forget(const struct context *context);

/* Unbinds whatever is bound to a multicast object that ends. */
void bindings_forget(const struct physical *multicast);

#endif
