/*
 * libnvidia-ml.so.1: queries of one device.
 *
 * The daemon answers how much memory is used. The link has the GPU's identity. nvml_load.c has
 * values that vary with the load, and nvml_processes.c the processes that use the GPU.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <stdio.h>

#define PCI_DEVICE_ID	 0x20b010deu /* an A100 of vendor 0x10de */
#define PCI_SUBSYSTEM_ID 0x145f10deu

static nvmlReturn_t query_memory(nvmlDevice_t device, const void *out, struct sim_memory *memory)
{
	nvmlReturn_t result;

	NVML_TRY(nvml_enter(device));
	result = nvml_query(device, SIM_MEMORY_INFO, memory, sizeof(*memory), NULL);
	nvml_leave();
	return result == NVML_SUCCESS && !out ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t nvml_describe(nvmlDevice_t device, const void *out, struct sim_gpu *gpu)
{
	NVML_TRY(nvml_enter(device));
	*gpu = *sim_link_gpu(device->link);
	nvml_leave();
	return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* Defines a query of a number that belongs to the GPU's identity or never changes. */
#define GPU_NUMBER(function, type, expression)                                                     \
	NVML_API(function, nvmlDevice_t device, type *value)                                       \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
                                                                                                   \
		NVML_TRY(nvml_describe(device, value, &gpu));                                      \
		*value = (type)(expression);                                                       \
		return NVML_SUCCESS;                                                               \
	}

static bool has_instance(nvmlDevice_t device, const struct sim_gpu *gpu)
{
	return !device->instance && nvml_has_instance(gpu);
}

/* Returns the nvmlDeviceArchitecture_t of a compute capability, such as 8 (Ampere). */
static unsigned int architecture(const struct sim_gpu *gpu)
{
	static const unsigned int by_major[16] = {
	    [5] = 3, [6] = 4, [7] = 5, [8] = 7, [9] = 9, [10] = 10};
	unsigned int found = by_major[gpu->capability_major & 15];

	return found ? found : 0xffffffffu;
}

GPU_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, gpu.minor)
GPU_NUMBER(nvmlDeviceGetIndex, unsigned int, nvml_index(device))
GPU_NUMBER(nvmlDeviceGetBrand, unsigned int, NVML_BRAND_NVIDIA)
GPU_NUMBER(nvmlDeviceGetArchitecture, unsigned int, architecture(&gpu))
GPU_NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, gpu.multiprocessors * 64)
GPU_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, SIM_BUS_WIDTH_BITS)
GPU_NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, NVML_FEATURE_ENABLED)
GPU_NUMBER(nvmlDeviceGetDisplayActive, unsigned int, NVML_FEATURE_DISABLED)
GPU_NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
GPU_NUMBER(nvmlDeviceGetPerformanceState, unsigned int, 0)
GPU_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, SIM_POWER_LIMIT_MW)
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, SIM_POWER_LIMIT_MW)
GPU_NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, device->instance)
GPU_NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, has_instance(device, &gpu))

/* Defines a query of two numbers: a mode now and after a reset, or the parts of a version. */
#define GPU_PAIR(function, type, one, two)                                                         \
	NVML_API(function, nvmlDevice_t device, type *first, type *second)                         \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
                                                                                                   \
		NVML_TRY(nvml_describe(device, first ? second : first, &gpu));                     \
		*first = (type)(one);                                                              \
		*second = (type)(two);                                                             \
		return NVML_SUCCESS;                                                               \
	}

GPU_PAIR(nvmlDeviceGetMigMode, unsigned int, has_instance(device, &gpu), has_instance(device, &gpu))
GPU_PAIR(nvmlDeviceGetEccMode, unsigned int, NVML_FEATURE_ENABLED, NVML_FEATURE_ENABLED)
GPU_PAIR(nvmlDeviceGetCudaComputeCapability, int, gpu.capability_major, 0)

NVML_API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct sim_memory pool;

	NVML_TRY(query_memory(device, memory, &pool));
	*memory = (nvmlMemory_t){.total = pool.total_bytes,
				 .free = pool.free_bytes,
				 .used = pool.total_bytes - pool.free_bytes};
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct sim_memory pool;

	NVML_TRY(query_memory(device, memory, &pool));
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*memory = (nvmlMemory_v2_t){.version = memory->version,
				    .total = pool.total_bytes,
				    .free = pool.free_bytes,
				    .used = pool.total_bytes - pool.free_bytes};
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetName, nvmlDevice_t device, char *name, unsigned int length)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, name, &gpu));
	return nvml_copy_text(gpu.name, name, length);
}

NVML_API(nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[NVML_DEVICE_UUID_BUFFER_SIZE];
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, uuid, &gpu));
	nvml_format_uuid(&gpu, device->instance, text);
	return nvml_copy_text(text, uuid, length);
}

/* A GPU has at most one MIG instance. Its GPU instance and compute instance are 0. */
#define INSTANCE_NUMBER(function)                                                                  \
	NVML_API(function, nvmlDevice_t device, unsigned int *value)                               \
	{                                                                                          \
		struct sim_gpu gpu;                                                                \
                                                                                                   \
		NVML_TRY(nvml_describe(device, value, &gpu));                                      \
		if (device->instance)                                                              \
			*value = 0;                                                                \
		return device->instance ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;                 \
	}

INSTANCE_NUMBER(nvmlDeviceGetGpuInstanceId)
INSTANCE_NUMBER(nvmlDeviceGetComputeInstanceId)

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned int index,
	 nvmlDevice_t *out)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, out, &gpu));
	if (index || !has_instance(device, &gpu))
		return NVML_ERROR_NOT_FOUND;
	*out = nvml_instance_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t device, nvmlDevice_t *out)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, out, &gpu));
	if (!device->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = nvml_gpu_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, pci, &gpu));
	*pci = (nvmlPciInfo_t){.domain = gpu.pci_domain,
			       .bus = gpu.pci_bus,
			       .pciDeviceId = PCI_DEVICE_ID,
			       .pciSubSystemId = PCI_SUBSYSTEM_ID};
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		 gpu.pci_domain & 0xffff, gpu.pci_bus & 0xff, 0);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", gpu.pci_domain, gpu.pci_bus,
		 0);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetTotalEccErrors, nvmlDevice_t device, unsigned int error_type,
	 unsigned int counter_type, unsigned long long *count)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, count, &gpu));
	if (error_type > 1 || counter_type > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* Only one field is simulated. The call succeeds even if a field is not supported. */
NVML_API(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct sim_shared *shared;

	NVML_TRY(nvml_enter(device));
	shared = sim_link_shared(device->link);
	for (int i = 0; values && i < count; i++) {
		nvmlFieldValue_t *field = &values[i];

		field->timestamp = (long long)nvml_now_us();
		field->latencyUsec = 0;
		field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (field->fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION || !shared)
			continue;
		field->nvmlReturn = NVML_SUCCESS;
		field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		field->value.ullVal =
		    __atomic_load_n(&shared->board.recovery_action, __ATOMIC_RELAXED);
	}
	nvml_leave();
	return count < 1 || !values ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* No simulated GPU can access another one's memory. */
NVML_API(nvmlDeviceGetP2PStatus, nvmlDevice_t device, nvmlDevice_t peer, unsigned int index,
	 unsigned int *status)
{
	struct sim_gpu gpu;

	NVML_TRY(nvml_describe(device, status, &gpu));
	NVML_TRY(nvml_describe(peer, status, &gpu));
	if (index >= NVML_P2P_CAPS_INDEX_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = device == peer ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}
