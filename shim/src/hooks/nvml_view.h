/* Maps an NVML handle to a GPU of the grant; shared by the views of memory and processes. */
#ifndef VGPU_NVML_VIEW_H
#define VGPU_NVML_VIEW_H

#include "charge/gate.h"
#include "vgpu/nvml_abi.h"

/*
 * VGPU_GATE_OPEN: the driver's own answer stands. VGPU_GATE_SHUT: NVML_ERROR_NO_PERMISSION.
 * VGPU_GATE_MANAGED: *gpu is an index in the grant, or VGPU_GPU_NOT_GRANTED.
 */
enum vgpu_gate vgpu_nvml_look(nvmlDevice_t device, int *gpu);

#endif
