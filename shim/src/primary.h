/* Which handle a device's primary context has: those who create contexts tell those who end them.
 */
#ifndef VGPU_PRIMARY_H
#define VGPU_PRIMARY_H

#include "vgpu/cuda_abi.h"

void vgpu_note_primary(CUdevice device, CUcontext context);

#endif
