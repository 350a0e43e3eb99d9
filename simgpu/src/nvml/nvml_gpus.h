/*
 * NVML's view of the GPUs: their list, and requests to one of them.
 *
 * nvml.c owns the links and their lock. The other files answer queries through this header.
 */
#ifndef SIMGPU_NVML_GPUS_H
#define SIMGPU_NVML_GPUS_H

#include <stdbool.h>

#include "abi/nvml_abi.h"
#include "client/client.h"

/* What a device handle points to. Handles stay valid after a shutdown and a new init. */
struct nvmlDevice_st {
	struct sim_link *link;
	bool instance; /* whether this is the GPU's MIG instance */
};

/*
 * Between nvml_enter and nvml_leave the links stay open. nvml_enter returns UNINITIALIZED before
 * nvmlInit, and INVALID_ARGUMENT for an unknown handle. The caller must call nvml_leave if, and
 * only if, nvml_enter returned SUCCESS. nvml_enter_any does the same without a device.
 */
nvmlReturn_t nvml_enter(nvmlDevice_t device);
nvmlReturn_t nvml_enter_any(void);
void nvml_leave(void);

/* Call these two functions between nvml_enter and nvml_leave. */
int nvml_gpu_count(void);
nvmlDevice_t nvml_gpu(int index);

bool nvml_has_instance(const struct sim_gpu *gpu);

/* Return the GPU of an instance, and the instance of a GPU that has one. */
nvmlDevice_t nvml_gpu_of(nvmlDevice_t instance);
nvmlDevice_t nvml_instance_of(nvmlDevice_t gpu);
unsigned int nvml_index(nvmlDevice_t device);

/* Stores the GPU's description; calls nvml_enter itself. Fails if the caller's `out` is NULL. */
nvmlReturn_t nvml_describe(nvmlDevice_t device, const void *out, struct sim_gpu *gpu);

/* Each sends one request to the GPU and returns its status as an NVML code. */
nvmlReturn_t nvml_request(nvmlDevice_t device, enum sim_op op, const void *req, uint32_t n,
			  void *reply, uint32_t cap, uint32_t *got);
nvmlReturn_t nvml_query(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
			uint32_t *got);

/* Writes "GPU-..." or an instance's "MIG-..." to `text`, of NVML_DEVICE_UUID_BUFFER_SIZE bytes. */
void nvml_format_uuid(const struct sim_gpu *gpu, bool instance, char *text);

/* Copies the text with its final NUL, or returns INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_text(const char *text, char *out, unsigned int out_bytes);

/* Returns from the calling function with the result of `call`, unless this is NVML_SUCCESS. */
#define NVML_TRY(call)                                                                             \
	do {                                                                                       \
		nvmlReturn_t tried = (call);                                                       \
		if (tried != NVML_SUCCESS)                                                         \
			return tried;                                                              \
	} while (0)

/* Returns the microseconds since 1970, as NVML's samples have them. */
unsigned long long nvml_now_us(void);

#endif
