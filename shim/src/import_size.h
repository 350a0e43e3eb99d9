/*
 * How much memory of another's an import holds. No call tells, and what the program says of it
 * proves nothing; but a driver maps no more of a handle than there is. So it is tried, at addresses
 * reserved for that, without access, and given back at once.
 *
 * Fed by the wrappers of imports; what it comes to is theirs to reserve. Makes no charge.
 */
#ifndef VGPU_IMPORT_SIZE_H
#define VGPU_IMPORT_SIZE_H

#include "place.h"
#include "vgpu/cuda_abi.h"

/*
 * The memory that `handle` names, made as `prop` says, on the device. What cannot be tried to its
 * end comes to the most that it can be: all of the card.
 */
uint64_t vgpu_import_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *prop,
			   CUdevice device);

/*
 * The memory behind a descriptor, which stays as it is, and where it lies; memory of the host is
 * nobody's. False: the driver knows it as no physical memory; both are left as they were.
 */
bool vgpu_descriptor_bytes(int fd, struct vgpu_place *place, uint64_t *bytes);

#endif
