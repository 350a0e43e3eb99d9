/*
 * libnvidia-ml.so.1: the processes that use a device.
 *
 * The answers are the same in the host and in every container: all processes with a context, and
 * their pids in the daemon's PID namespace. These GPUs have no graphics and no MPS, so the lists of
 * such processes are empty.
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

/* Stores the daemon's rows of one kind. After an error there is nothing to free. */
static nvmlReturn_t query_rows(nvmlDevice_t device, enum sim_op op, size_t row_bytes,
			       struct rows *rows)
{
	nvmlReturn_t result;
	uint32_t got = 0;

	NVML_TRY(nvml_enter(device));
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

/* Stores the compute processes: all that have a context, even without memory. */
static nvmlReturn_t query_processes(nvmlDevice_t device, struct rows *rows)
{
	return query_rows(device, SIM_PROCESSES, sizeof(struct sim_process), rows);
}

/* Stores the number of rows in *count, even if they do not fit in `out`. */
static nvmlReturn_t check_capacity(unsigned int *count, const void *out, unsigned int there)
{
	unsigned int capacity = out ? *count : 0;

	*count = there;
	return there > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned int *count, void *out,
				      size_t row_bytes)
{
	const struct sim_process *found;
	nvmlReturn_t result;
	struct rows rows;

	NVML_TRY(query_processes(device, &rows));
	found = rows.of;
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
		struct rows found;                                                                 \
                                                                                                   \
		(void)rows;                                                                        \
		NVML_TRY(query_processes(device, &found));                                         \
		free(found.of);                                                                    \
		if (count)                                                                         \
			*count = 0;                                                                \
		return count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;                         \
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
	const struct sim_process *found;
	nvmlReturn_t result;
	struct rows rows;

	NVML_TRY(query_processes(device, &rows));
	found = rows.of;
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

/* Stores each process's use of the GPU in the last second. `out` has space for `*count` rows. */
static nvmlReturn_t query_loads(nvmlDevice_t device, unsigned int *count, const void *out,
				struct rows *rows)
{
	nvmlReturn_t result;

	NVML_TRY(query_rows(device, SIM_PROCESS_UTILIZATION, sizeof(struct sim_process_utilization),
			    rows));
	if (!count)
		result = NVML_ERROR_INVALID_ARGUMENT;
	else
		result =
		    rows->count ? check_capacity(count, out, rows->count) : NVML_ERROR_NOT_FOUND;
	if (result != NVML_SUCCESS)
		free(rows->of);
	return result;
}

NVML_API(nvmlDeviceGetProcessUtilization, nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
	 unsigned int *count, unsigned long long since)
{
	const struct sim_process_utilization *found;
	struct rows rows;

	(void)since;
	NVML_TRY(query_loads(device, count, out, &rows));
	found = rows.of;
	for (unsigned int i = 0; i < rows.count; i++)
		out[i] = (nvmlProcessUtilizationSample_t){
		    .pid = found[i].pid,
		    .timeStamp = nvml_now_us(),
		    .smUtil = found[i].gpu_percent,
		    .memUtil = found[i].gpu_percent / 2,
		};
	free(rows.of);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device,
	 nvmlProcessesUtilizationInfo_v1_t *info)
{
	const struct sim_process_utilization *found;
	struct rows rows;

	NVML_TRY(nvml_enter(device));
	nvml_leave();
	if (info && info->version != NVML_PROCESSES_UTILIZATION_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	NVML_TRY(query_loads(device, info ? &info->processSamplesCount : NULL,
			     info ? info->procUtilArray : NULL, &rows));
	found = rows.of;
	for (unsigned int i = 0; i < rows.count; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
		    .timeStamp = nvml_now_us(),
		    .pid = found[i].pid,
		    .smUtil = found[i].gpu_percent,
		    .memUtil = found[i].gpu_percent / 2,
		};
	free(rows.of);
	return NVML_SUCCESS;
}

/* The window through which the CPU accesses the GPU's memory. Its size is the next power of two.
 * Each context uses a little of it. */
NVML_API(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
	unsigned long long window = 1, used = 0;
	const struct sim_process *found;
	struct sim_gpu gpu;
	struct rows rows;

	NVML_TRY(nvml_describe(device, bar1, &gpu));
	NVML_TRY(query_processes(device, &rows));
	found = rows.of;
	for (unsigned int i = 0; i < rows.count; i++)
		used += found[i].contexts * BAR1_BYTES_PER_CONTEXT;
	free(rows.of);
	while (window < gpu.memory_bytes)
		window *= 2;
	used = used < window ? used : window;
	*bar1 = (nvmlBAR1Memory_t){window, window - used, used};
	return NVML_SUCCESS;
}
