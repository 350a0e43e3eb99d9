/*
 * NVML's queries of memory and processes.
 *
 * Memory is reported with the limit applied. A GPU outside the grant shows no memory. Programs that
 * only query, such as nvidia-smi, take no slot, and need no cuInit.
 *
 * Lists of processes are made from the region. They have the container's own processes, by the pids
 * in the container. The driver's lists have the host's pids and other tenants' processes, and never
 * reach the program. The driver is still called, with space for no process, so that the program
 * gets the driver's error codes. Lists that only the driver can make (graphics processes,
 * utilization) are reported as empty. Other queries are not changed.
 */
#include "charge/admission.h"
#include "charge/device_memory.h"
#include "charge/enforcement.h"
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
	(void)real_nvmlDeviceGetIndex(device, &number); /* indexes are in PCI order */
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

/* Find the GPU of a device, and what to report. VGPU_ENFORCEMENT_NONE: report the driver's figures.
 * VGPU_ENFORCEMENT_FAILED: report NVML_ERROR_NO_PERMISSION. VGPU_ENFORCEMENT_ACTIVE: report for
 * `*gpu`, an index in the grant or VGPU_GPU_NOT_GRANTED. */
static enum vgpu_enforcement look_up(nvmlDevice_t device, int *gpu)
{
	enum vgpu_enforcement enforcement = vgpu_enforcement_peek();

	*gpu = enforcement == VGPU_ENFORCEMENT_ACTIVE ? gpu_of(device) : VGPU_GPU_NOT_GRANTED;
	return *gpu == VGPU_GPU_UNMANAGED ? VGPU_ENFORCEMENT_NONE : enforcement;
}

/* Apply the limit to the driver's figures in `view`. False: no limit applies, and nothing is
 * changed. */
static bool look(nvmlDevice_t device, struct vgpu_memory_view *view, nvmlReturn_t *result)
{
	int gpu;
	enum vgpu_enforcement enforcement = look_up(device, &gpu);

	if (enforcement == VGPU_ENFORCEMENT_ACTIVE) {
		*view = vgpu_view_of(gpu, view->total_bytes, view->free_bytes);
	} else if (enforcement == VGPU_ENFORCEMENT_FAILED) {
		*result = NVML_ERROR_NO_PERMISSION;
		*view = (struct vgpu_memory_view){0};
	}
	return enforcement != VGPU_ENFORCEMENT_NONE;
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
/* The limit does not distinguish protected memory from other memory, so report the same figures. */
SHOWING(nvmlDeviceGetConfComputeProtectedMemoryUsage, nvmlMemory_t, )

/* All containers share the GPU's BAR1 window. Report at most the container's own memory as used. */
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

/* True if the driver, called with space for no process, found no other error. */
static bool is_fine(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Write one process into a row of an NVML table. Each table has its own row type. */
typedef void put_row(void *rows, unsigned int index, const struct vgpu_holder *holder);

static void put_v1(void *rows, unsigned int index, const struct vgpu_holder *holder)
{
	((nvmlProcessInfo_v1_t *)rows)[index] = (nvmlProcessInfo_v1_t){holder->pid, holder->bytes};
}

static void put_v2(void *rows, unsigned int index, const struct vgpu_holder *holder)
{
	((nvmlProcessInfo_t *)rows)[index] = (nvmlProcessInfo_t){
	    holder->pid, holder->bytes, NVML_VALUE_NOT_AVAILABLE, NVML_VALUE_NOT_AVAILABLE};
}

static void put_detail(void *rows, unsigned int index, const struct vgpu_holder *holder)
{
	((nvmlProcessDetail_v1_t *)rows)[index] =
	    (nvmlProcessDetail_v1_t){.pid = holder->pid,
				     .usedGpuMemory = holder->bytes,
				     .gpuInstanceId = NVML_VALUE_NOT_AVAILABLE,
				     .computeInstanceId = NVML_VALUE_NOT_AVAILABLE};
}

/* `*count` is the capacity before, and the number of processes after, as in NVML. */
static nvmlReturn_t list(int gpu, unsigned int *count, void *rows, put_row *put)
{
	unsigned int capacity = rows ? *count : 0;
	struct vgpu_holder holder;
	uint32_t cursor = 0;

	for (*count = 0; vgpu_next_holder(gpu, &cursor, &holder); ++*count)
		if (*count < capacity)
			put(rows, *count, &holder);
	return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t refuse(unsigned int *count)
{
	*count = 0;
	return NVML_ERROR_NO_PERMISSION;
}

/* In place of look_up for a list that only the driver can make: report an empty list. */
static enum vgpu_enforcement hide(nvmlDevice_t device, int *gpu)
{
	(void)device;
	*gpu = VGPU_GPU_NOT_GRANTED;
	return vgpu_enforcement_peek();
}

#define LISTING(name, row, look_up, put)                                                           \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, row *rows)                     \
	{                                                                                          \
		unsigned int none = 0;                                                             \
		nvmlReturn_t result;                                                               \
		int gpu;                                                                           \
		enum vgpu_enforcement enforcement = look_up(device, &gpu);                         \
                                                                                                   \
		if (enforcement == VGPU_ENFORCEMENT_NONE || !count || (*count && !rows))           \
			return real_##name(device, count, rows);                                   \
		result = real_##name(device, &none, NULL);                                         \
		if (!is_fine(result))                                                              \
			return result;                                                             \
		return enforcement == VGPU_ENFORCEMENT_FAILED ? refuse(count)                      \
							      : list(gpu, count, rows, put);       \
	}

LISTING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, look_up, put_v1)
LISTING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, look_up, put_v2)
LISTING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, look_up, put_v2)
LISTING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, hide, put_v1)
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, hide, put_v2)
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, hide, put_v2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_v1_t *out)
{
	nvmlProcessDetailList_v1_t none;
	nvmlReturn_t result;
	int gpu;
	enum vgpu_enforcement enforcement = look_up(device, &gpu);

	if (enforcement == VGPU_ENFORCEMENT_NONE || !out)
		return real_nvmlDeviceGetRunningProcessDetailList(device, out);
	none = (nvmlProcessDetailList_v1_t){.version = out->version, .mode = out->mode};
	result = real_nvmlDeviceGetRunningProcessDetailList(device, &none);
	if (!is_fine(result))
		return result;
	if (enforcement == VGPU_ENFORCEMENT_FAILED)
		return refuse(&out->numProcArrayEntries);
	if (out->mode != NVML_PROCESS_MODE_COMPUTE)
		gpu = VGPU_GPU_NOT_GRANTED;
	return list(gpu, &out->numProcArrayEntries, out->procArray, put_detail);
}

/* Report NVML_ERROR_NOT_FOUND for a list that only the driver can make. The driver writes into
 * `unseen`, which the program does not get. */
#define NOT_FOUND(name, params, args, out, type, begin, unseen_args)                               \
	nvmlReturn_t name params                                                                   \
	{                                                                                          \
		type unseen;                                                                       \
		nvmlReturn_t result;                                                               \
                                                                                                   \
		if (vgpu_enforcement_peek() == VGPU_ENFORCEMENT_NONE || !out)                      \
			return real_##name args;                                                   \
		unseen = begin;                                                                    \
		result = real_##name unseen_args;                                                  \
		return is_fine(result) ? NVML_ERROR_NOT_FOUND : result;                            \
	}

NOT_FOUND(nvmlDeviceGetProcessUtilization,
	  (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
	   unsigned long long since_us),
	  (device, samples, count, since_us), count, unsigned int, 0,
	  (device, NULL, &unseen, since_us))
NOT_FOUND(nvmlDeviceGetProcessesUtilizationInfo,
	  (nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info), (device, info), info,
	  nvmlProcessesUtilizationInfo_v1_t,
	  ((nvmlProcessesUtilizationInfo_v1_t){.version = info->version,
					       .lastSeenTimeStamp = info->lastSeenTimeStamp}),
	  (device, &unseen))
