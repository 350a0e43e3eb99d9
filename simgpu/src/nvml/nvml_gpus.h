/*
 * NVML's view of the GPUs: their list, and requests to one of them.
 *
 * nvml.c owns the links and their lock; the other files answer queries through this header.
 */
#ifndef SIMGPU_NVML_GPUS_H
#define SIMGPU_NVML_GPUS_H

#include <stdbool.h>

#include "abi/nvml_abi.h"
#include "client/client.h"

/* The target of a device handle. Handles stay valid over shutdown and a new init. */
struct nvmlDevice_st {
	struct sim_link *link;
	bool instance; /* a GPU's MIG instance, not the GPU */
};

/*
 * Between nvml_enter and nvml_leave the links stay open. nvml_enter returns UNINITIALIZED before
 * nvmlInit, and INVALID_ARGUMENT for an unknown handle; the caller must call nvml_leave exactly if
 * it returned SUCCESS. nvml_enter_any takes no device.
 */
nvmlReturn_t nvml_enter(nvmlDevice_t device);
nvmlReturn_t nvml_enter_any(void);
void nvml_leave(void);

/* For callers that have entered. */
int nvml_gpu_count(void);
nvmlDevice_t nvml_gpu(int index);

bool nvml_has_instance(const struct sim_gpu *gpu);

/* The GPU that an instance belongs to, and the instance that a GPU has if it has one. */
nvmlDevice_t nvml_gpu_of(nvmlDevice_t instance);
nvmlDevice_t nvml_instance_of(nvmlDevice_t gpu);
unsigned int nvml_index(nvmlDevice_t device);

/* The GPU's description, for a caller that has not entered and will store an answer in `out`. */
nvmlReturn_t nvml_describe(nvmlDevice_t device, const void *out, struct sim_gpu *gpu);

/* One request to the GPU; its status as an NVML code. */
nvmlReturn_t nvml_query(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
			uint32_t *got);

/* "GPU-...", or "MIG-..." of an instance, into `text` of NVML_DEVICE_UUID_BUFFER_SIZE bytes. */
void nvml_format_uuid(const struct sim_gpu *gpu, bool instance, char *text);

/* Copies with the final NUL, or returns INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_text(const char *text, char *out, unsigned int out_bytes);

/* Returns from the calling function with the result of `call` unless that is NVML_SUCCESS. */
#define NVML_TRY(call)                                                                             \
	do {                                                                                       \
		nvmlReturn_t tried = (call);                                                       \
		if (tried != NVML_SUCCESS)                                                         \
			return tried;                                                              \
	} while (0)

/* Microseconds since 1970, as in NVML's samples. */
unsigned long long nvml_now_us(void);

#endif
