/*
 * NVML's memory queries, with the limit applied. Programs such as nvidia-smi only query: they take
 * no slot, and need no cuInit. A GPU outside the grant shows no memory.
 */
#include "hooks/nvml_view.h"
#include "charge/device_memory.h"

#include "charge/admission.h"
#include "loader/hooks.h"
#include "os/uuid.h"
#include "vgpu/region.h"

static int gpu_named(nvmlDevice_t device)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
	unsigned int number = 0;
	uint8_t uuid[16];

	if (real_nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !vgpu_uuid_parse(text, sizeof(text), uuid))
		return VGPU_GPU_NOT_GRANTED;
	(void)real_nvmlDeviceGetIndex(device, &number); /* NVML counts in PCI order */
	return vgpu_gpu_of_uuid(uuid, (int)number);
}

/* For a MIG instance the grant may name the instance or its GPU. */
static int gpu_of(nvmlDevice_t device)
{
	nvmlDevice_t whole;
	int gpu = gpu_named(device);

	if (gpu == VGPU_GPU_NOT_GRANTED &&
	    real_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &whole) == NVML_SUCCESS)
		gpu = gpu_named(whole);
	return gpu;
}

enum vgpu_gate vgpu_nvml_look(nvmlDevice_t device, int *gpu)
{
	enum vgpu_gate gate = vgpu_gate_look();

	*gpu = gate == VGPU_GATE_MANAGED ? gpu_of(device) : VGPU_GPU_NOT_GRANTED;
	return *gpu == VGPU_GPU_UNMANAGED ? VGPU_GATE_OPEN : gate;
}

/* Apply the limit to the driver's figures. False: they remain as they are. */
static bool look(nvmlDevice_t device, struct vgpu_memory_view *view, nvmlReturn_t *result)
{
	int gpu;

	switch (vgpu_nvml_look(device, &gpu)) {
	case VGPU_GATE_OPEN:
		return false;
	case VGPU_GATE_SHUT:
		*result = NVML_ERROR_NO_PERMISSION;
		*view = (struct vgpu_memory_view){0};
		return true;
	case VGPU_GATE_MANAGED:
		break;
	}
	*view = vgpu_view_of(gpu, view->total_bytes, view->free_bytes);
	return true;
}

#define SHOWING(name, type, ...)                                                                   \
	nvmlReturn_t name(nvmlDevice_t device, type *memory)                                       \
	{                                                                                          \
		nvmlReturn_t result = real_##name(device, memory);                                 \
		struct vgpu_memory_view view;                                                      \
                                                                                                   \
		if (result != NVML_SUCCESS)                                                        \
			return result;                                                             \
		view = (struct vgpu_memory_view){.total_bytes = memory->total,                     \
						 .free_bytes = memory->free};                      \
		if (look(device, &view, &result))                                                  \
			*memory = (type){__VA_ARGS__.total = view.total_bytes,                     \
					 .free = view.free_bytes, .used = view.used_bytes};        \
		return result;                                                                     \
	}

SHOWING(nvmlDeviceGetMemoryInfo, nvmlMemory_t, )
SHOWING(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, .version = memory->version, )
/* For protected memory, the whole GPU's figures: the limit does not distinguish the two kinds. */
SHOWING(nvmlDeviceGetConfComputeProtectedMemoryUsage, nvmlMemory_t, )

/* The window is the GPU's; at most this container's memory is mapped in it. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
	nvmlReturn_t result = real_nvmlDeviceGetBAR1MemoryInfo(device, bar1);
	struct vgpu_memory_view view = {UINT64_MAX, 0, 0};

	if (result != NVML_SUCCESS || !look(device, &view, &result))
		return result;
	if (!view.total_bytes)
		*bar1 = (nvmlBAR1Memory_t){0};
	if (view.used_bytes < bar1->bar1Used)
		bar1->bar1Used = view.used_bytes;
	bar1->bar1Free = bar1->bar1Total - bar1->bar1Used;
	return result;
}
