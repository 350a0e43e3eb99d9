/*
 * Primary contexts, between those who begin contexts and those who end them.
 *
 * A device's begins and ends in one thread at a time: who retains it then knows whether it has to
 * be charged, and who ends it that nobody has begun the next life of its handle.
 */
#ifndef VGPU_PRIMARY_H
#define VGPU_PRIMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"

/* Until leave, no other thread is here for the device. False: this thread is already, the driver
 * has called back; or there is no such device. Then there is nothing to leave. */
bool vgpu_primary_enter(CUdevice device);
void vgpu_primary_leave(CUdevice device, bool entered);

/* Its handle, which never changes. */
void vgpu_note_primary(CUdevice device, CUcontext context);

/* Whose primary context lives that life; negative: nobody's. */
CUdevice vgpu_device_of_primary(uint32_t life);

/* Between enter and leave: release it by that call, and forget what it held if that has ended it.
 */
CUresult vgpu_release_primary(CUdevice device, CUresult (*driver_release)(CUdevice device));

#endif
