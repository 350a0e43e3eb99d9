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
	nvmlReturn_t result;

	TRY_NVML(nvml_enter(device));
	result = nvml_query(device, SIM_MEMORY_INFO, out, sizeof(*out), NULL);
	nvml_leave();
	return result;
}

nvmlReturn_t nvml_describe(nvmlDevice_t device, struct sim_gpu *out)
{
	TRY_NVML(nvml_enter(device));
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

GPU_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, gpu.minor)
GPU_NUMBER(nvmlDeviceGetIndex, unsigned int, nvml_index(device))
GPU_NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, gpu.power_limit_mw)
GPU_NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, device->instance)

NVML_API(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned int *now, unsigned int *later)
{
	struct sim_gpu gpu;

	TRY_NVML(nvml_describe(device, &gpu));
	if (!now || !later)
		return NVML_ERROR_INVALID_ARGUMENT;
	*now = *later = has_instance(device, &gpu);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct sim_memory pool;

	TRY_NVML(query_memory(device, &pool));
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	*memory =
	    (nvmlMemory_t){pool.total_bytes, pool.free_bytes, pool.total_bytes - pool.free_bytes};
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct sim_memory pool;

	TRY_NVML(query_memory(device, &pool));
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*memory = (nvmlMemory_v2_t){NVML_MEMORY_V2, pool.total_bytes, 0, pool.free_bytes,
				    pool.total_bytes - pool.free_bytes};
	return NVML_SUCCESS;
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

	TRY_NVML(nvml_describe(device, &gpu));
	nvml_format_uuid(&gpu, device->instance, text);
	return nvml_copy_text(text, uuid, length);
}

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned int index,
	 nvmlDevice_t *out)
{
	struct sim_gpu gpu;

	TRY_NVML(nvml_describe(device, &gpu));
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

	TRY_NVML(nvml_describe(device, &gpu));
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

/* One field is simulated. The call succeeds also where a field of it is not supported. */
NVML_API(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	nvmlReturn_t result = NVML_SUCCESS;
	struct sim_shared *shared;

	TRY_NVML(nvml_enter(device));
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
