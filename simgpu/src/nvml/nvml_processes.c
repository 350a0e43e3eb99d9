/*
 * libnvidia-ml.so.1: the processes that use a device.
 *
 * The answers are the host's: every process with a context, whichever process asks and in whatever
 * container, with the daemon's pids. No graphics and no MPS on these GPUs, so those lists are
 * empty.
 */
#include "client/channel.h"
#include "nvml/nvml_gpus.h"

#include <stdlib.h>
#include <string.h>

#define BAR1_BYTES_PER_CONTEXT (2ull << 20)

struct rows {
	void *of; /* the caller frees it */
	unsigned int count;
};

/* The daemon's rows of one kind. Free nothing if the answer is not NVML_SUCCESS. */
static nvmlReturn_t query_rows(nvmlDevice_t device, enum sim_op op, size_t row_bytes,
			       struct rows *rows)
{
	nvmlReturn_t result = nvml_enter(device);
	uint32_t got = 0;

	if (result != NVML_SUCCESS)
		return result;
	sim_look(device->link);
	rows->of = malloc(SIM_PAYLOAD_BYTES);
	result = rows->of ? nvml_query(device, op, rows->of, SIM_PAYLOAD_BYTES, &got)
			  : NVML_ERROR_MEMORY;
	nvml_leave();
	rows->count = (unsigned int)(got / row_bytes);
	if (result != NVML_SUCCESS)
		free(rows->of);
	return result;
}

/* A context makes a process a compute process, whether it holds memory or not. */
static nvmlReturn_t query_processes(nvmlDevice_t device, struct rows *rows)
{
	return query_rows(device, SIM_PROCESSES, sizeof(struct sim_process), rows);
}

static nvmlReturn_t query_loads(nvmlDevice_t device, struct rows *rows)
{
	return query_rows(device, SIM_PROCESS_UTILIZATION, sizeof(struct sim_process_utilization),
			  rows);
}

/* Their number is stored in *count, whether or not the caller has space for them. */
static nvmlReturn_t check_capacity(unsigned int *count, const void *out, unsigned int there)
{
	unsigned int capacity = out ? *count : 0;

	*count = there;
	return there > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned int *count, void *out,
				      size_t row_bytes)
{
	struct rows rows = {NULL, 0};
	nvmlReturn_t result = query_processes(device, &rows);
	const struct sim_process *found = rows.of;

	if (result != NVML_SUCCESS)
		return result;
	if (!count || (*count && !out))
		result = NVML_ERROR_INVALID_ARGUMENT;
	else
		result = check_capacity(count, out, rows.count);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < rows.count; i++) {
		nvmlProcessInfo_t row = {
		    .pid = found[i].pid,
		    .usedGpuMemory = found[i].bytes,
		    .gpuInstanceId = NVML_VALUE_NOT_AVAILABLE,
		    .computeInstanceId = NVML_VALUE_NOT_AVAILABLE,
		};

		memcpy((char *)out + i * row_bytes, &row, row_bytes);
	}
	free(rows.of);
	return result;
}

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24,
	       "the older row is the head of the newer one");

NVML_API(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t device, unsigned int *count,
	 nvmlProcessInfo_t *rows)
{
	return compute_processes(device, count, rows, sizeof(*rows));
}

NVML_API(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t device, unsigned int *count,
	 nvmlProcessInfo_t *rows)
{
	return compute_processes(device, count, rows, sizeof(*rows));
}

NVML_API(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t device, unsigned int *count,
	 nvmlProcessInfo_v1_t *rows)
{
	return compute_processes(device, count, rows, sizeof(*rows));
}

#define NO_PROCESSES(function)                                                                     \
	NVML_API(function, nvmlDevice_t device, unsigned int *count, void *rows)                   \
	{                                                                                          \
		struct rows found = {NULL, 0};                                                     \
		nvmlReturn_t result = query_processes(device, &found);                             \
                                                                                                   \
		(void)rows;                                                                        \
		if (result != NVML_SUCCESS)                                                        \
			return result;                                                             \
		free(found.of);                                                                    \
		if (!count)                                                                        \
			return NVML_ERROR_INVALID_ARGUMENT;                                        \
		*count = 0;                                                                        \
		return NVML_SUCCESS;                                                               \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML_API(nvmlDeviceGetRunningProcessDetailList, nvmlDevice_t device,
	 nvmlProcessDetailList_v1_t *list)
{
	struct rows rows = {NULL, 0};
	nvmlReturn_t result = query_processes(device, &rows);
	const struct sim_process *found = rows.of;

	if (result != NVML_SUCCESS)
		return result;
	if (!list || list->mode > NVML_PROCESS_MODE_MPS)
		result = NVML_ERROR_INVALID_ARGUMENT;
	else if (list->version != NVML_PROCESS_DETAIL_LIST_V1)
		result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	else
		result = check_capacity(&list->numProcArrayEntries, list->procArray,
					list->mode == NVML_PROCESS_MODE_COMPUTE ? rows.count : 0);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < list->numProcArrayEntries; i++)
		list->procArray[i] = (nvmlProcessDetail_v1_t){
		    .pid = found[i].pid,
		    .usedGpuMemory = found[i].bytes,
		    .gpuInstanceId = NVML_VALUE_NOT_AVAILABLE,
		    .computeInstanceId = NVML_VALUE_NOT_AVAILABLE,
		};
	free(rows.of);
	return result;
}

NVML_API(nvmlDeviceGetProcessUtilization, nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
	 unsigned int *count, unsigned long long since)
{
	struct rows rows = {NULL, 0};
	nvmlReturn_t result = query_loads(device, &rows);
	const struct sim_process_utilization *found = rows.of;

	(void)since; /* every sample is of the second that just ended */
	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		result = NVML_ERROR_INVALID_ARGUMENT;
	else if (!rows.count)
		result = NVML_ERROR_NOT_FOUND;
	else
		result = check_capacity(count, out, rows.count);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < rows.count; i++)
		out[i] = (nvmlProcessUtilizationSample_t){
		    .pid = found[i].pid,
		    .timeStamp = nvml_now_us(),
		    .smUtil = found[i].gpu_percent,
		    .memUtil = found[i].gpu_percent / 2,
		};
	free(rows.of);
	return result;
}

NVML_API(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device,
	 nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct rows rows = {NULL, 0};
	nvmlReturn_t result = query_loads(device, &rows);
	const struct sim_process_utilization *found = rows.of;

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		result = NVML_ERROR_INVALID_ARGUMENT;
	else if (info->version != NVML_PROCESSES_UTILIZATION_V1)
		result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	else if (!rows.count)
		result = NVML_ERROR_NOT_FOUND;
	else
		result =
		    check_capacity(&info->processSamplesCount, info->procUtilArray, rows.count);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < rows.count; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
		    .timeStamp = nvml_now_us(),
		    .pid = found[i].pid,
		    .smUtil = found[i].gpu_percent,
		    .memUtil = found[i].gpu_percent / 2,
		};
	free(rows.of);
	return result;
}

/* The window through which the CPU accesses the GPU: the next power of two; a context maps a
 * little. */
NVML_API(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
	struct rows rows = {NULL, 0};
	unsigned long long window = 1, used = 0;
	struct sim_gpu gpu;
	nvmlReturn_t result = query_processes(device, &rows);
	const struct sim_process *found = rows.of;

	if (result != NVML_SUCCESS)
		return result;
	for (unsigned int i = 0; i < rows.count; i++)
		used += found[i].contexts * BAR1_BYTES_PER_CONTEXT;
	free(rows.of);
	result = nvml_describe(device, &gpu);
	if (result == NVML_SUCCESS && !bar1)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result != NVML_SUCCESS)
		return result;
	while (window < gpu.memory_bytes)
		window *= 2;
	used = used < window ? used : window;
	*bar1 = (nvmlBAR1Memory_t){window, window - used, used};
	return NVML_SUCCESS;
}
