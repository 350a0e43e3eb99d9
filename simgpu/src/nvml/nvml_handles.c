/*
 * Device handles: by index, UUID and PCI bus id.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

NVML_API(nvmlDeviceGetCount_v2, unsigned int *count)
{
	NVML_TRY(nvml_enter_any());
	if (count)
		*count = (unsigned int)nvml_gpu_count();
	nvml_leave();
	return count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlDeviceGetCount, unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

/* Stores the GPU's handle. If the GPU fell off the bus, it fails, as the real library does. */
static nvmlReturn_t hand_out(int index, nvmlReturn_t absent, nvmlDevice_t *device)
{
	struct sim_memory memory;
	nvmlReturn_t result;

	if (index < 0 || index >= nvml_gpu_count())
		return absent;
	result = nvml_query(nvml_gpu(index), SIM_MEMORY_INFO, &memory, sizeof(memory), NULL);
	if (result == NVML_SUCCESS)
		*device = nvml_gpu(index);
	return result;
}

NVML_API(nvmlDeviceGetHandleByIndex_v2, unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;

	NVML_TRY(nvml_enter_any());
	if (device && index < SIM_MAX_GPUS)
		result = hand_out((int)index, NVML_ERROR_INVALID_ARGUMENT, device);
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceGetHandleByIndex, unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
	char text[NVML_DEVICE_UUID_BUFFER_SIZE];
	bool instance = uuid && strncmp(uuid, "MIG-", 4) == 0;
	int found = -1;

	NVML_TRY(nvml_enter_any());
	if (uuid && device) {
		for (int i = 0; i < nvml_gpu_count() && found < 0; i++) {
			nvml_format_uuid(sim_link_gpu(nvml_gpu(i)->link), instance, text);
			if (strcasecmp(text, uuid) == 0)
				found = i;
		}
		result = hand_out(found, NVML_ERROR_NOT_FOUND, device);
		if (result == NVML_SUCCESS && instance)
			*device = nvml_instance_of(nvml_gpu(found));
	}
	nvml_leave();
	return result;
}

/* The text is DOMAIN:BUS:DEVICE.FUNCTION. The domain may have any width or be absent. */
static int parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus,
			unsigned int *device)
{
	unsigned int function = 0;
	int end = 0;

	if (sscanf(text, "%x:%x:%x%n.%x%n", domain, bus, device, &end, &function, &end) >= 3)
		return text[end] == '\0' && function == 0;
	*domain = 0;
	if (sscanf(text, "%x:%x%n.%x%n", bus, device, &end, &function, &end) >= 2)
		return text[end] == '\0' && function == 0;
	return 0;
}

NVML_API(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, nvmlDevice_t *device)
{
	unsigned int domain, bus, slot;
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
	int found = -1;

	NVML_TRY(nvml_enter_any());
	if (bus_id && device && parse_bus_id(bus_id, &domain, &bus, &slot)) {
		for (int i = 0; i < nvml_gpu_count() && found < 0; i++) {
			const struct sim_gpu *gpu = sim_link_gpu(nvml_gpu(i)->link);

			if (gpu->pci_domain == domain && gpu->pci_bus == bus && !slot)
				found = i;
		}
		result = hand_out(found, NVML_ERROR_NOT_FOUND, device);
	}
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceGetHandleByPciBusId, const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
