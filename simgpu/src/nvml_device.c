/*
 * libnvidia-ml.so.1: questions to one device.
 *
 * Memory is the daemon's; identity comes with the link. What moves with the load is in nvml_load.c,
 * who uses the card in nvml_processes.c.
 */
#define _GNU_SOURCE
#include "nvml_cards.h"

#include <stdio.h>
#include <string.h>

#define PCI_DEVICE_ID	 0x20b010deu /* an A100's, of vendor 0x10de */
#define PCI_SUBSYSTEM_ID 0x145f10deu

static nvmlReturn_t ask_memory(nvmlDevice_t device, struct sim_memory *out)
{
	nvmlReturn_t result = nvml_enter(device);

	if (result != NVML_SUCCESS)
		return result;
	result = nvml_ask(device, SIM_MEMORY_INFO, out, sizeof(*out), NULL);
	nvml_leave();
	return result;
}

nvmlReturn_t nvml_describe(nvmlDevice_t device, struct sim_card *out)
{
	nvmlReturn_t result = nvml_enter(device);

	if (result != NVML_SUCCESS)
		return result;
	*out = *sim_link_card(device->link);
	nvml_leave();
	return NVML_SUCCESS;
}

/* A number that is part of the card's identity or of its fixed state. */
#define CARD_NUMBER(function, type, expression)                                                    \
	NVML_API(function, nvmlDevice_t device, type *value)                                       \
	{                                                                                          \
		struct sim_card card;                                                              \
		nvmlReturn_t result = nvml_describe(device, &card);                                \
                                                                                                   \
		if (result == NVML_SUCCESS && !value)                                              \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS)                                                        \
			*value = (type)(expression);                                               \
		return result;                                                                     \
	}

static bool has_instance(nvmlDevice_t device, const struct sim_card *card)
{
	return !device->instance && nvml_has_instance(card);
}

static unsigned int architecture(const struct sim_card *card)
{
	/* nvmlDeviceArchitecture_t; 8.9 is Ada, the other 8.x are Ampere. */
	static const unsigned int by_major[] = {
	    [5] = 3, [6] = 4, [7] = 5, [8] = 7, [9] = 9, [10] = 10};

	if (card->capability_major == 7 && card->capability_minor == 5)
		return 6;
	if (card->capability_major == 8 && card->capability_minor == 9)
		return 8;
	if (card->capability_major < sizeof(by_major) / sizeof(by_major[0]) &&
	    by_major[card->capability_major])
		return by_major[card->capability_major];
	return 0xffffffffu;
}

CARD_NUMBER(nvmlDeviceGetMinorNumber, unsigned int, card.minor)
CARD_NUMBER(nvmlDeviceGetIndex, unsigned int, nvml_index(device))
CARD_NUMBER(nvmlDeviceGetModuleId, unsigned int, nvml_index(device))
CARD_NUMBER(nvmlDeviceGetBrand, unsigned int, NVML_BRAND_NVIDIA)
CARD_NUMBER(nvmlDeviceGetArchitecture, unsigned int, architecture(&card))
CARD_NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, card.multiprocessors * 64)
CARD_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, card.bus_width_bits)
CARD_NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, NVML_FEATURE_ENABLED)
CARD_NUMBER(nvmlDeviceGetDisplayMode, unsigned int, NVML_FEATURE_DISABLED)
CARD_NUMBER(nvmlDeviceGetDisplayActive, unsigned int, NVML_FEATURE_DISABLED)
CARD_NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
CARD_NUMBER(nvmlDeviceGetPerformanceState, unsigned int, 0)
CARD_NUMBER(nvmlDeviceGetPowerState, unsigned int, 0)
CARD_NUMBER(nvmlDeviceGetPowerManagementMode, unsigned int, NVML_FEATURE_ENABLED)
CARD_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, card.power_limit_mw)
CARD_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, card.power_limit_mw)
CARD_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, card.power_limit_mw)
CARD_NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, device->instance)
CARD_NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, has_instance(device, &card))
CARD_NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
CARD_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 4)
CARD_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 4)
CARD_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
CARD_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)

/* Two numbers at once: a mode now and after the next start, or the parts of a version. */
#define CARD_PAIR(function, type, one, two)                                                        \
	NVML_API(function, nvmlDevice_t device, type *first, type *second)                         \
	{                                                                                          \
		struct sim_card card;                                                              \
		nvmlReturn_t result = nvml_describe(device, &card);                                \
                                                                                                   \
		if (result == NVML_SUCCESS && (!first || !second))                                 \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS) {                                                      \
			*first = (type)(one);                                                      \
			*second = (type)(two);                                                     \
		}                                                                                  \
		return result;                                                                     \
	}

CARD_PAIR(nvmlDeviceGetMigMode, unsigned int, has_instance(device, &card),
	  has_instance(device, &card))
CARD_PAIR(nvmlDeviceGetEccMode, unsigned int, NVML_FEATURE_ENABLED, NVML_FEATURE_ENABLED)
CARD_PAIR(nvmlDeviceGetCudaComputeCapability, int, card.capability_major, card.capability_minor)
CARD_PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, card.power_limit_mw / 4,
	  card.power_limit_mw)

NVML_API(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct sim_memory pool;
	nvmlReturn_t result = ask_memory(device, &pool);

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
	nvmlReturn_t result = ask_memory(device, &pool);

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
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	return result == NVML_SUCCESS ? nvml_copy_text(card.name, name, length) : result;
}

NVML_API(nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[NVML_DEVICE_UUID_BUFFER_SIZE];
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result != NVML_SUCCESS)
		return result;
	nvml_format_uuid(&card, device->instance, text);
	return nvml_copy_text(text, uuid, length);
}

/* One instance per card, if any: GPU instance 0, compute instance 0. */
#define INSTANCE_NUMBER(function)                                                                  \
	NVML_API(function, nvmlDevice_t device, unsigned int *value)                               \
	{                                                                                          \
		struct sim_card card;                                                              \
		nvmlReturn_t result = nvml_describe(device, &card);                                \
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
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index || !has_instance(device, &card))
		return NVML_ERROR_NOT_FOUND;
	*out = nvml_instance_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t device, nvmlDevice_t *out)
{
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result != NVML_SUCCESS)
		return result;
	if (!out || !device->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = nvml_card_of(device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result == NVML_SUCCESS && !pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result != NVML_SUCCESS)
		return result;
	memset(pci, 0, sizeof(*pci));
	pci->domain = card.pci_domain;
	pci->bus = card.pci_bus;
	pci->device = card.pci_device;
	pci->pciDeviceId = PCI_DEVICE_ID;
	pci->pciSubSystemId = PCI_SUBSYSTEM_ID;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		 card.pci_domain & 0xffff, card.pci_bus & 0xff, card.pci_device & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", card.pci_domain, card.pci_bus,
		 card.pci_device);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo_v2, nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &full);

	if (result == NVML_SUCCESS && !pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result != NVML_SUCCESS)
		return result;
	memset(pci, 0, sizeof(*pci));
	memcpy(pci->busId, full.busIdLegacy, sizeof(pci->busId));
	pci->domain = full.domain;
	pci->bus = full.bus;
	pci->device = full.device;
	pci->pciDeviceId = full.pciDeviceId;
	pci->pciSubSystemId = full.pciSubSystemId;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetPciInfo, nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
	return nvmlDeviceGetPciInfo_v2(device, pci);
}

NVML_API(nvmlDeviceGetTotalEccErrors, nvmlDevice_t device, unsigned int error_type,
	 unsigned int counter_type, unsigned long long *count)
{
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result == NVML_SUCCESS && (!count || error_type > 1 || counter_type > 1))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

/* No simulated GPU reaches another's memory. */
NVML_API(nvmlDeviceGetP2PStatus, nvmlDevice_t device, nvmlDevice_t peer, unsigned int index,
	 unsigned int *status)
{
	struct sim_card card;
	nvmlReturn_t result = nvml_describe(device, &card);

	if (result == NVML_SUCCESS)
		result = nvml_describe(peer, &card);
	if (result == NVML_SUCCESS && (index >= NVML_P2P_CAPS_INDEX_COUNT || !status))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*status = device == peer ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return result;
}
