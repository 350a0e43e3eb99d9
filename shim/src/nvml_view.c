/*
 * NVML's memory queries, shown through the limit. Programs such as nvidia-smi only look: they take
 * no slot, and need no cuInit. A card that is not in the grant shows no memory at all.
 */
#include <stdbool.h>

#include "admission.h"
#include "hooks.h"
#include "init.h"
#include "uuid.h"
#include "vgpu/region.h"

static int card_of(nvmlDevice_t device)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
	uint8_t uuid[16];

	if (real_nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !vgpu_uuid_parse(text, sizeof(text), uuid))
		return VGPU_CARD_NOT_GRANTED;
	return vgpu_card_of_uuid(uuid);
}

/* Put the limit over what the driver said; `managed` is false where it applies to nothing. */
static nvmlReturn_t look(nvmlDevice_t device, struct vgpu_memory_view *view, bool *managed)
{
	*managed = false;
	switch (vgpu_gate_look()) {
	case VGPU_GATE_OPEN:
		return NVML_SUCCESS;
	case VGPU_GATE_SHUT:
		return NVML_ERROR_NO_PERMISSION;
	case VGPU_GATE_MANAGED:
		break;
	}
	*managed = true;
	*view = vgpu_view_of(card_of(device), view->total_bytes, view->free_bytes);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo(device, memory);
	struct vgpu_memory_view view;
	bool managed;

	if (result != NVML_SUCCESS)
		return result;
	view = (struct vgpu_memory_view){.total_bytes = memory->total, .free_bytes = memory->free};
	result = look(device, &view, &managed);
	if (managed)
		*memory = (nvmlMemory_t){view.total_bytes, view.free_bytes, view.used_bytes};
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t result = real_nvmlDeviceGetMemoryInfo_v2(device, memory);
	struct vgpu_memory_view view;
	bool managed;

	if (result != NVML_SUCCESS)
		return result;
	view = (struct vgpu_memory_view){.total_bytes = memory->total, .free_bytes = memory->free};
	result = look(device, &view, &managed);
	if (managed)
		*memory = (nvmlMemory_v2_t){.version = memory->version,
					    .total = view.total_bytes,
					    .free = view.free_bytes,
					    .used = view.used_bytes};
	return result;
}
