/*
 * libnvidia-ml.so.1: queries of one device.
 *
 * Memory is the daemon's; identity is from the link. nvml_load.c has what varies with the load,
 * nvml_processes.c the processes that use the GPU.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <stdio.h>
#include <string.h>

#define PCI_DEVICE_ID	 0x20b010deu /* an A100's, of vendor 0x10de */
#define PCI_SUBSYSTEM_ID 0x145f10deu

static nvmlReturn_t query_memory(nvmlDevice_t device, struct sim_memory *out)
{
	nvmlReturn_t result = nvml_enter(device);

	if (result != NVML_SUCCESS)
		return result;
	result = nvml_query(device, SIM_MEMORY_INFO, out, sizeof(*out), NULL);
	nvml_leave();
	return result;
}

nvmlReturn_t nvml_describe(nvmlDevice_t device, struct sim_gpu *out)
{
	nvmlReturn_t result = nvml_enter(device);

	if (result != NVML_SUCCESS)
		return result;
	*out = *sim_link_gpu(device->link);
	nvml_leave();
	return NVML_SUCCESS;
}

/* A number that is part of the GPU's identity or of its fixed state. */
#define GPU_NUMBER(function, type, expression)                                                     \
	NVML_API(function, nvmlDevice_t device, type *value)                                       \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
		nvmlReturn_t result = nvml_describe(device, &gpu);                                 \
                                                                                                   \
		if (result == NVML_SUCCESS && !value)                                              \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS)                                                        \
			*value = (type)(expression);                                               \
		return result;                                                                     \
	}

static bool has_instance(nvmlDevice_t device, const struct sim_gpu *gpu)
{
	return !device->instance && nvml_has_instance(gpu);
}

static unsigned int architecture(const struct sim_gpu *gpu)
{
	/* nvmlDeviceArchitecture_t; 8.9 is Ada, the other 8.x are Ampere. */
	static const unsigned int by_major[] = {
	    [5] = 3, [6] = 4, [7] = 5, [8] = 7, [9] = 9, [10] = 10};

	if (gpu->capability_major == 7 && gpu->capability_minor == 5)
		return 6;
	if (gpu->capability_major == 8 && gpu->capability_minor == 9)
		return 8;
	if (gpu->capability_major < sizeof(by_major) / sizeof(by_major[0]) &&
	    by_major[gpu->capability_major])
		return by_major[gpu->capability_major];
	return 0xffffffffu;
}

GPU_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, gpu.minor)
GPU_NUMBER(nvmlDeviceGetIndex, unsigned int, nvml_index(device))
GPU_NUMBER(nvmlDeviceGetBrand, unsigned int, NVML_BRAND_NVIDIA)
GPU_NUMBER(nvmlDeviceGetArchitecture, unsigned int, architecture(&gpu))
GPU_NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, gpu.multiprocessors * 64)
GPU_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, gpu.bus_width_bits)
GPU_NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, NVML_FEATURE_ENABLED)
GPU_NUMBER(nvmlDeviceGetDisplayActive, unsigned int, NVML_FEATURE_DISABLED)
GPU_NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
GPU_NUMBER(nvmlDeviceGetPerformanceState, unsigned int, 0)
GPU_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, gpu.power_limit_mw)
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, gpu.power_limit_mw)
GPU_NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, device->instance)
GPU_NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, has_instance(device, &gpu))

/* Two numbers at once: a mode now and after the next start, or the parts of a version. */
#define GPU_PAIR(function, type, one, two)                                                         \
	NVML_API(function, nvmlDevice_t device, type *first, type *second)                         \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
		nvmlReturn_t result = nvml_describe(device, &gpu);                                 \
                                                                                                   \
		if (result == NVML_SUCCESS && (!first || !second))                                 \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS) {                                                      \
			*first = (type)(one);                                                      \
			*second = (type)(two);                                                     \
		}                                                                                  \
		return result;                                                                     \
	}

GPU_PAIR(nvmlDeviceGetMigMode, unsigned int, has_instance(device, &gpu), has_instance(device, &gpu))
GPU_PAIR(nvmlDeviceGetEccMode, unsigned int, NVML_FEATURE_ENABLED, NVML_FEATURE_ENABLED)
GPU_PAIR(nvmlDeviceGetCudaComputeCapability, int, gpu.capability_major, gpu.capability_minor)

NVML_API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct sim_memory pool;
	nvmlReturn_t result = query_memory(device, &pool);

	if (result == NVML_SUCCESS && !memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS) {
		memory->total = pool.total_bytes;
		memory->free = pool.free_bytes;
		memory->used = pool.total_bytes - pool.free_bytes;
	}
	return result;
}

NVML_API(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct sim_memory pool;
	nvmlReturn_t result = query_memory(device, &pool);

	if (result == NVML_SUCCESS && !memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS && memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (result == NVML_SUCCESS) {
		memory->total = pool.total_bytes;
		memory->reserved = 0;
		memory->free = pool.free_bytes;
		memory->used = pool.total_bytes - pool.free_bytes;
	}
	return result;
}

NVML_API(nvmlDeviceGetName, nvmlDevice_t device, char *name, unsigned int length)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	return result == NVML_SUCCESS ? nvml_copy_text(gpu.name, name, length) : result;
}

NVML_API(nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[NVML_DEVICE_UUID_BUFFER_SIZE];
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	nvml_format_uuid(&gpu, device->instance, text);
	return nvml_copy_text(text, uuid, length);
}

/* One instance per GPU, if any: GPU instance 0, compute instance 0. */
#define INSTANCE_NUMBER(function)                                                                  \
	NVML_API(function, nvmlDevice_t device, unsigned int *value)                               \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
		nvmlReturn_t result = nvml_describe(device, &gpu);                                 \
                                                                                                   \
		if (result == NVML_SUCCESS && !value)                                              \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS && !device->instance)                                   \
			result = NVML_ERROR_NOT_SUPPORTED;                                         \
		if (result == NVML_SUCCESS)                                                        \
			*value = 0;                                                                \
		return result;                                                                     \
	}

INSTANCE_NUMBER(nvmlDeviceGetGpuInstanceId)
INSTANCE_NUMBER(nvmlDeviceGetComputeInstanceId)

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned int index,
	 nvmlDevice_t *out)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index || !has_instance(device, &gpu))
		return NVML_ERROR_NOT_FOUND;
	*out = nvml_instance_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t device, nvmlDevice_t *out)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!out || !device->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = nvml_gpu_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result == NVML_SUCCESS && !pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result != NVML_SUCCESS)
		return result;
	memset(pci, 0, sizeof(*pci));
	pci->domain = gpu.pci_domain;
	pci->bus = gpu.pci_bus;
	pci->device = gpu.pci_device;
	pci->pciDeviceId = PCI_DEVICE_ID;
	pci->pciSubSystemId = PCI_SUBSYSTEM_ID;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		 gpu.pci_domain & 0xffff, gpu.pci_bus & 0xff, gpu.pci_device & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", gpu.pci_domain, gpu.pci_bus,
		 gpu.pci_device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetTotalEccErrors, nvmlDevice_t device, unsigned int error_type,
	 unsigned int counter_type, unsigned long long *count)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result == NVML_SUCCESS && (!count || error_type > 1 || counter_type > 1))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

/* One field is simulated. The call succeeds also where a field of it is not supported. */
NVML_API(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	nvmlReturn_t result = nvml_enter(device);
	struct sim_shared *shared;

	if (result != NVML_SUCCESS)
		return result;
	shared = sim_link_shared(device->link);
	if (count < 1 || !values)
		result = NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; result == NVML_SUCCESS && i < count; i++) {
		nvmlFieldValue_t *field = &values[i];

		field->timestamp = (long long)nvml_now_us();
		field->latencyUsec = 0;
		field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (field->fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION || !shared)
			continue;
		field->nvmlReturn = NVML_SUCCESS;
		field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		field->value.ullVal = 0;
		field->value.uiVal =
		    __atomic_load_n(&shared->board.recovery_action, __ATOMIC_RELAXED);
	}
	nvml_leave();
	return result;
}

/* No simulated GPU has access to another's memory. */
NVML_API(nvmlDeviceGetP2PStatus, nvmlDevice_t device, nvmlDevice_t peer, unsigned int index,
	 unsigned int *status)
{
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result == NVML_SUCCESS)
		result = nvml_describe(peer, &gpu);
	if (result == NVML_SUCCESS && (index >= NVML_P2P_CAPS_INDEX_COUNT || !status))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*status = device == peer ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return result;
}
