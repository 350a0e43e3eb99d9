/*
 * NVML's lists of processes, made from the region: the container's own processes, by their own
 * pids.
 *
 * The driver's rows name the host's processes, other tenants' among them, and never reach the
 * program: the driver is called with space for none, so that its argument checks and codes remain
 * its own. What only the driver has on processes (their share of the engines, sessions of the
 * encoder, accounting of exited processes) is reported as empty.
 */
#include "charge/admission.h"
#include "hooks/nvml_view.h"
#include "loader/hooks.h"
#include "vgpu/region.h"

/* The driver, called with space for none, has reported no error. */
static bool is_fine(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The name of a container's process in each of NVML's tables. */
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

/* count is the space before and the number of processes after, as in NVML. */
static nvmlReturn_t list(int gpu, unsigned int *count, void *rows, put_row *put)
{
	unsigned int room = rows ? *count : 0;
	struct vgpu_holder holder;
	uint32_t cursor = 0;

	for (*count = 0; vgpu_next_holder(gpu, &cursor, &holder); ++*count)
		if (*count < room)
			put(rows, *count, &holder);
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t refuse(unsigned int *count)
{
	*count = 0;
	return NVML_ERROR_NO_PERMISSION;
}

#define COMPUTE(name, row, put)                                                                    \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, row *rows)                     \
	{                                                                                          \
		unsigned int none = 0;                                                             \
		nvmlReturn_t result;                                                               \
		int gpu;                                                                           \
		enum vgpu_gate gate = vgpu_nvml_look(device, &gpu);                                \
                                                                                                   \
		if (gate == VGPU_GATE_OPEN || !count || (*count && !rows))                         \
			return real_##name(device, count, rows);                                   \
		result = real_##name(device, &none, NULL);                                         \
		if (!is_fine(result))                                                              \
			return result;                                                             \
		return gate == VGPU_GATE_SHUT ? refuse(count) : list(gpu, count, rows, put);       \
	}

COMPUTE(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, put_v1)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, put_v2)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, put_v2)

/* Rows that only the driver has, and only by the host's pids: none are reported. */
#define NO_PROCESSES(name, row)                                                                    \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, row *rows)                     \
	{                                                                                          \
		unsigned int none = 0;                                                             \
		nvmlReturn_t result;                                                               \
		enum vgpu_gate gate = vgpu_gate_look();                                            \
                                                                                                   \
		if (gate == VGPU_GATE_OPEN || !count || (*count && !rows))                         \
			return real_##name(device, count, rows);                                   \
		result = real_##name(device, &none, NULL);                                         \
		if (!is_fine(result))                                                              \
			return result;                                                             \
		*count = 0;                                                                        \
		return gate == VGPU_GATE_SHUT ? refuse(count) : NVML_SUCCESS;                      \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetEncoderSessions, void)
NO_PROCESSES(nvmlDeviceGetFBCSessions, void)
NO_PROCESSES(nvmlDeviceGetAccountingPids, unsigned int)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_v1_t *out)
{
	nvmlProcessDetailList_v1_t none;
	nvmlReturn_t result;
	int gpu;
	enum vgpu_gate gate = vgpu_nvml_look(device, &gpu);

	if (gate == VGPU_GATE_OPEN || !out)
		return real_nvmlDeviceGetRunningProcessDetailList(device, out);
	none = (nvmlProcessDetailList_v1_t){.version = out->version, .mode = out->mode};
	result = real_nvmlDeviceGetRunningProcessDetailList(device, &none);
	if (!is_fine(result))
		return result;
	if (gate == VGPU_GATE_SHUT)
		return refuse(&out->numProcArrayEntries);
	if (out->mode != NVML_PROCESS_MODE_COMPUTE)
		gpu = VGPU_GPU_NOT_GRANTED;
	return list(gpu, &out->numProcArrayEntries, out->procArray, put_detail);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *samples,
					     unsigned int *count, unsigned long long since_us)
{
	unsigned int none = 0;
	nvmlReturn_t result;

	if (vgpu_gate_look() == VGPU_GATE_OPEN || !count)
		return real_nvmlDeviceGetProcessUtilization(device, samples, count, since_us);
	result = real_nvmlDeviceGetProcessUtilization(device, NULL, &none, since_us);
	return is_fine(result) ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
						   nvmlProcessesUtilizationInfo_v1_t *info)
{
	nvmlProcessesUtilizationInfo_v1_t none;
	nvmlReturn_t result;

	if (vgpu_gate_look() == VGPU_GATE_OPEN || !info)
		return real_nvmlDeviceGetProcessesUtilizationInfo(device, info);
	none = (nvmlProcessesUtilizationInfo_v1_t){.version = info->version,
						   .lastSeenTimeStamp = info->lastSeenTimeStamp};
	result = real_nvmlDeviceGetProcessesUtilizationInfo(device, &none);
	return is_fine(result) ? NVML_ERROR_NOT_FOUND : result;
}

/* An accounting pid is the host's: the process that it belongs to is unknown here. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
					  nvmlAccountingStats_t *stats)
{
	nvmlAccountingStats_t unseen;
	nvmlReturn_t result;

	if (vgpu_gate_look() == VGPU_GATE_OPEN || !stats)
		return real_nvmlDeviceGetAccountingStats(device, pid, stats);
	result = real_nvmlDeviceGetAccountingStats(device, pid, &unseen);
	return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
	nvmlAccountingStats_v2_t unseen;
	nvmlReturn_t result;

	if (vgpu_gate_look() == VGPU_GATE_OPEN || !stats)
		return real_nvmlDeviceGetAccountingStats_v2(device, stats);
	unseen = *stats;
	result = real_nvmlDeviceGetAccountingStats_v2(device, &unseen);
	return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}
