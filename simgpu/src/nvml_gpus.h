/*
 * NVML's view of the GPUs: which there are, and how to ask one of them.
 *
 * nvml.c owns the links and their lock; nvml_device.c and nvml_load.c answer questions through this
 * header.
 */
#ifndef SIMGPU_NVML_GPUS_H
#define SIMGPU_NVML_GPUS_H

#include <stdbool.h>

#include "client.h"
#include "nvml_abi.h"

/* What a device handle points to. Handles stay valid over shutdown and a new init. */
struct nvmlDevice_st {
	struct sim_link *link;
	bool instance; /* a GPU's MIG instance, not the GPU */
};

/*
 * Between nvml_enter and nvml_leave the links stay open. nvml_enter answers UNINITIALIZED before
 * nvmlInit, and INVALID_ARGUMENT for a handle that is none of ours; you must call nvml_leave
 * exactly where it answered SUCCESS. nvml_enter_any asks for no device.
 */
nvmlReturn_t nvml_enter(nvmlDevice_t device);
nvmlReturn_t nvml_enter_any(void);
void nvml_leave(void);

/* Valid between enter and leave. */
int nvml_gpu_count(void);
nvmlDevice_t nvml_gpu(int index);

bool nvml_has_instance(const struct sim_gpu *gpu);

/* The GPU that an instance is of, and the instance that a GPU has if it has one. */
nvmlDevice_t nvml_gpu_of(nvmlDevice_t instance);
nvmlDevice_t nvml_instance_of(nvmlDevice_t gpu);
unsigned int nvml_index(nvmlDevice_t device);

/* What the GPU is, for who has not entered. */
nvmlReturn_t nvml_describe(nvmlDevice_t device, struct sim_gpu *gpu);

/* One request to the GPU, its status as NVML says it. */
nvmlReturn_t nvml_ask(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
		      uint32_t *got);

/* "GPU-...", or "MIG-..." of an instance, into `text` of NVML_DEVICE_UUID_BUFFER_SIZE bytes. */
void nvml_format_uuid(const struct sim_gpu *gpu, bool instance, char *text);

/* Copies with the final NUL, or says INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_text(const char *text, char *out, unsigned int out_bytes);

/* Microseconds since 1970, as NVML stamps its samples. */
unsigned long long nvml_now_us(void);

#endif
