/*
 * Which card of the grant a device of the program's is: by UUID, or, of limits from the
 * environment, by its number on the bus. Asks the driver once, and knows no contexts.
 */
#ifndef VGPU_DEVICE_CARDS_H
#define VGPU_DEVICE_CARDS_H

#include "vgpu/cuda_abi.h"

/* Index in the grant, or in its place one of region.h's. Ordinals keep their card for the life of
 * the process. */
int vgpu_card_of_device(CUdevice device);

/* Limits from the environment hold for all the devices that a program sees, from its start. */
void vgpu_meet_devices(void);

#endif
