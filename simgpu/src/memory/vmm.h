/*
 * Memory that is made, placed and mapped in separate steps: physical allocations, reserved
 * addresses, and the mappings between them.
 *
 * Handles and pins hold a physical allocation. A pin is a mapping, a binding to a multicast object,
 * or a tile of a sparse array. When the last of them ends, the allocation is freed. It belongs to
 * the process, not to a context. The daemon accounts for its bytes. Each mapping has its own pages,
 * so two mappings of one allocation do not show the same data. The caller holds the driver's lock.
 */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "base/driver.h"

#define SHAREABLE_TYPES (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)

/* Returns the unit of addresses and sizes: the GPU's granule, but at least a page. */
static inline uint64_t vmm_granule(void)
{
	uint64_t granule = driver.device[0].gpu->granule_bytes;

	return granule > 4096 ? granule : 4096;
}

struct physical {
	struct object object;
	struct device *device; /* NULL for host memory and multicast objects */
	uint64_t id;	       /* the daemon's id, if `device` is set */
	uint64_t bytes;
	CUmemAllocationProp prop;
	unsigned int handles, pins;
	bool multicast;
	CUmulticastObjectProp multicast_prop;
	uint64_t devices; /* ordinals added to a multicast object, as bits */
	int fd;		  /* the file that represents it in other processes; -1: none */
	struct physical *next_freed;
};

/* Returns the object of a handle that the program has not released, or NULL. */
struct physical *physical_get(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle physical_handle(const struct physical *memory);
/* Makes an object with one handle. */
struct physical *physical_new(uint64_t bytes);
void physical_pin(struct physical *memory);
void physical_unpin(struct physical *memory);
void physical_release(struct physical *memory);
/* Releases the lock. Then frees, at the daemon, memory that has no handle and no pin left. */
CUresult physical_leave(CUresult result);
/* Like physical_leave, but keeps the lock. */
void physical_delete_released(void);

/* Finds the device of a location. Any other location returns CUDA_ERROR_INVALID_VALUE. */
CUresult location_device(const CUmemLocation *location, struct device **device);
bool location_is_host(const CUmemLocation *location);

struct mapping {
	struct range range; /* without a context; `id` is that of `memory` */
	struct physical *memory;
	uint64_t writable; /* ordinals of devices that may write, as bits */
};

/* Returns the mapping that contains `address`, or NULL. */
struct mapping *mapping_find(uint64_t address);
/* Returns true if the address is reserved, whether or not it is mapped. */
bool vmm_reserved(uint64_t address);
/* Returns true if all bytes are mapped and the calling thread's current device may use them. */
bool vmm_accessible(uint64_t address, uint64_t bytes);

/* Reserves addresses and maps a piece of the memory there. Every device may access it. */
CUresult buffer_map(struct context *context, struct physical *memory, uint64_t offset,
		    uint64_t bytes, uint64_t *address);
/* Undoes buffer_map. Returns false if buffer_map did not return `address`. */
bool buffer_unmap(uint64_t address);
void buffers_forget(const struct context *context);

/* Unbinds all memory from a multicast object that ends. */
void bindings_forget(const struct physical *multicast);

#endif
