/*
 * What nvidia-smi can query of a GPU or a process: one table of fields per kind of row.
 */
#define _GNU_SOURCE
#include "smi/smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CLOCK_GRAPHICS	0
#define CLOCK_SM	1
#define CLOCK_VIDEO	3
#define ECC_UNCORRECTED 1
#define ECC_VOLATILE	0

static nvmlReturn_t put_number(nvmlReturn_t result, unsigned long long value, char *out)
{
	snprintf(out, SMI_TEXT, "%llu", value);
	return result;
}

static nvmlReturn_t put_text(nvmlReturn_t result, const char *text, char *out)
{
	snprintf(out, SMI_TEXT, "%s", text);
	return result;
}

static nvmlReturn_t put_watt(nvmlReturn_t result, unsigned int milliwatt, char *out)
{
	snprintf(out, SMI_TEXT, "%u.%02u", milliwatt / 1000, milliwatt % 1000 / 10);
	return result;
}

static const char *enabled(unsigned int mode)
{
	return mode ? "Enabled" : "Disabled";
}

#define FIELD(name) static nvmlReturn_t name(const struct smi_row *row, char *out)

FIELD(timestamp)
{
	char seconds[SMI_TEXT / 2];
	struct timespec now;
	struct tm local;

	(void)row;
	clock_gettime(CLOCK_REALTIME, &now);
	if (!localtime_r(&now.tv_sec, &local))
		return NVML_ERROR_UNKNOWN;
	strftime(seconds, sizeof(seconds), "%Y/%m/%d %H:%M:%S", &local);
	snprintf(out, SMI_TEXT, "%s.%03ld", seconds, now.tv_nsec / 1000000);
	return NVML_SUCCESS;
}

FIELD(driver_version)
{
	(void)row;
	return nvml.nvmlSystemGetDriverVersion(out, SMI_TEXT);
}

FIELD(count)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&value);

	(void)row;
	return put_number(result, value, out);
}

FIELD(gpu_index)
{
	return put_number(NVML_SUCCESS, row->index, out);
}

FIELD(name)
{
	return nvml.nvmlDeviceGetName(row->device, out, SMI_TEXT);
}

FIELD(uuid)
{
	return nvml.nvmlDeviceGetUUID(row->device, out, SMI_TEXT);
}

FIELD(bus_id)
{
	nvmlPciInfo_t pci = {0};
	nvmlReturn_t result = nvml.nvmlDeviceGetPciInfo_v3(row->device, &pci);

	return put_text(result, pci.busId, out);
}

static nvmlReturn_t memory(const struct smi_row *row, nvmlMemory_v2_t *info)
{
	*info = (nvmlMemory_v2_t){.version = NVML_MEMORY_V2};
	return nvml.nvmlDeviceGetMemoryInfo_v2(row->device, info);
}

FIELD(memory_total)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t result = memory(row, &info);

	return put_number(result, smi_mib(info.total), out);
}

FIELD(memory_used)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t result = memory(row, &info);

	return put_number(result, smi_mib(info.used), out);
}

FIELD(memory_free)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t result = memory(row, &info);

	return put_number(result, smi_mib(info.free), out);
}

FIELD(memory_reserved)
{
	nvmlMemory_v2_t info;
	nvmlReturn_t result = memory(row, &info);

	return put_number(result, smi_mib(info.reserved), out);
}

FIELD(utilization_gpu)
{
	nvmlUtilization_t rates = {0};
	nvmlReturn_t result = nvml.nvmlDeviceGetUtilizationRates(row->device, &rates);

	return put_number(result, rates.gpu, out);
}

FIELD(utilization_memory)
{
	nvmlUtilization_t rates = {0};
	nvmlReturn_t result = nvml.nvmlDeviceGetUtilizationRates(row->device, &rates);

	return put_number(result, rates.memory, out);
}

FIELD(temperature)
{
	unsigned int value = 0;
	nvmlReturn_t result =
	    nvml.nvmlDeviceGetTemperature(row->device, NVML_TEMPERATURE_GPU, &value);

	return put_number(result, value, out);
}

FIELD(fan)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetFanSpeed(row->device, &value);

	return put_number(result, value, out);
}

FIELD(power_draw)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetPowerUsage(row->device, &value);

	return put_watt(result, value, out);
}

FIELD(power_limit)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetPowerManagementLimit(row->device, &value);

	return put_watt(result, value, out);
}

FIELD(enforced_power_limit)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetEnforcedPowerLimit(row->device, &value);

	return put_watt(result, value, out);
}

FIELD(pstate)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetPerformanceState(row->device, &value);

	snprintf(out, SMI_TEXT, "P%u", value);
	return result;
}

FIELD(persistence_mode)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetPersistenceMode(row->device, &value);

	return put_text(result, enabled(value), out);
}

FIELD(display_active)
{
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetDisplayActive(row->device, &value);

	return put_text(result, enabled(value), out);
}

FIELD(compute_mode)
{
	static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited",
					    "Exclusive_Process"};
	unsigned int value = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetComputeMode(row->device, &value);

	return put_text(result, value < 4 ? names[value] : "Unknown", out);
}

FIELD(compute_capability)
{
	int major = 0, minor = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetCudaComputeCapability(row->device, &major, &minor);

	snprintf(out, SMI_TEXT, "%d.%d", major, minor);
	return result;
}

FIELD(mig_mode)
{
	unsigned int now = 0, later = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetMigMode(row->device, &now, &later);

	return put_text(result, enabled(now), out);
}

FIELD(ecc_mode)
{
	unsigned int now = 0, later = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetEccMode(row->device, &now, &later);

	return put_text(result, enabled(now), out);
}

FIELD(ecc_uncorrected)
{
	unsigned long long value = 0;
	nvmlReturn_t result =
	    nvml.nvmlDeviceGetTotalEccErrors(row->device, ECC_UNCORRECTED, ECC_VOLATILE, &value);

	return put_number(result, value, out);
}

#define CLOCK_FIELD(field, function, type)                                                         \
	FIELD(field)                                                                               \
	{                                                                                          \
		unsigned int value = 0;                                                            \
		nvmlReturn_t result = nvml.function(row->device, type, &value);                    \
                                                                                                   \
		return put_number(result, value, out);                                             \
	}

CLOCK_FIELD(clock_graphics, nvmlDeviceGetClockInfo, CLOCK_GRAPHICS)
CLOCK_FIELD(clock_sm, nvmlDeviceGetClockInfo, CLOCK_SM)
CLOCK_FIELD(clock_memory, nvmlDeviceGetClockInfo, NVML_CLOCK_MEM)
CLOCK_FIELD(clock_video, nvmlDeviceGetClockInfo, CLOCK_VIDEO)
CLOCK_FIELD(clock_max_graphics, nvmlDeviceGetMaxClockInfo, CLOCK_GRAPHICS)
CLOCK_FIELD(clock_max_sm, nvmlDeviceGetMaxClockInfo, CLOCK_SM)
CLOCK_FIELD(clock_max_memory, nvmlDeviceGetMaxClockInfo, NVML_CLOCK_MEM)

static const struct smi_field gpu_fields[] = {
    {"timestamp", NULL, NULL, timestamp},
    {"driver_version", NULL, NULL, driver_version},
    {"count", NULL, NULL, count},
    {"name", "gpu_name", NULL, name},
    {"uuid", "gpu_uuid", NULL, uuid},
    {"index", NULL, NULL, gpu_index},
    {"pci.bus_id", "gpu_bus_id", NULL, bus_id},
    {"memory.total", NULL, "MiB", memory_total},
    {"memory.reserved", NULL, "MiB", memory_reserved},
    {"memory.used", NULL, "MiB", memory_used},
    {"memory.free", NULL, "MiB", memory_free},
    {"utilization.gpu", NULL, "%", utilization_gpu},
    {"utilization.memory", NULL, "%", utilization_memory},
    {"temperature.gpu", NULL, NULL, temperature},
    {"fan.speed", NULL, "%", fan},
    {"power.draw", NULL, "W", power_draw},
    {"power.limit", NULL, "W", power_limit},
    {"enforced.power.limit", NULL, "W", enforced_power_limit},
    {"pstate", NULL, NULL, pstate},
    {"persistence_mode", NULL, NULL, persistence_mode},
    {"display_active", NULL, NULL, display_active},
    {"compute_mode", NULL, NULL, compute_mode},
    {"compute_cap", NULL, NULL, compute_capability},
    {"mig.mode.current", NULL, NULL, mig_mode},
    {"ecc.mode.current", NULL, NULL, ecc_mode},
    {"ecc.errors.uncorrected.volatile.total", NULL, NULL, ecc_uncorrected},
    {"clocks.current.graphics", "clocks.gr", "MHz", clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", clock_memory},
    {"clocks.current.video", "clocks.video", "MHz", clock_video},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", clock_max_graphics},
    {"clocks.max.sm", NULL, "MHz", clock_max_sm},
    {"clocks.max.memory", "clocks.max.mem", "MHz", clock_max_memory},
};

FIELD(process_pid)
{
	return put_number(NVML_SUCCESS, row->process->pid, out);
}

FIELD(process_name)
{
	nvmlReturn_t result = nvml.nvmlSystemGetProcessName(row->process->pid, out, SMI_TEXT);

	/* A process of another PID namespace has no name here. */
	return result == NVML_ERROR_NOT_FOUND ? put_text(NVML_SUCCESS, "[Not Found]", out) : result;
}

FIELD(process_memory)
{
	return put_number(NVML_SUCCESS, smi_mib(row->process->usedGpuMemory), out);
}

static const struct smi_field apps_fields[] = {
    {"timestamp", NULL, NULL, timestamp},
    {"gpu_name", NULL, NULL, name},
    {"gpu_bus_id", NULL, NULL, bus_id},
    {"gpu_uuid", NULL, NULL, uuid},
    {"pid", NULL, NULL, process_pid},
    {"process_name", "name", NULL, process_name},
    {"used_gpu_memory", "used_memory", "MiB", process_memory},
};

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const struct smi_field *find(const struct smi_field *table, int rows, const char *wanted,
				    int length)
{
	for (int i = 0; i < rows; i++) {
		const char *names[] = {table[i].name, table[i].alias};

		for (int j = 0; j < 2; j++) {
			if (names[j] && (int)strlen(names[j]) == length &&
			    strncmp(names[j], wanted, (size_t)length) == 0)
				return &table[i];
		}
	}
	return NULL;
}

const struct smi_field *smi_gpu_field(const char *name, int length)
{
	return find(gpu_fields, COUNT(gpu_fields), name, length);
}

const struct smi_field *smi_apps_field(const char *name, int length)
{
	return find(apps_fields, COUNT(apps_fields), name, length);
}

static void print_fields(const struct smi_field *table, int rows)
{
	for (int i = 0; i < rows; i++)
		printf("\"%s\"%s%s%s\n", table[i].name, table[i].alias ? " or \"" : "",
		       table[i].alias ? table[i].alias : "", table[i].alias ? "\"" : "");
}

void smi_print_gpu_fields(void)
{
	print_fields(gpu_fields, COUNT(gpu_fields));
}

void smi_print_apps_fields(void)
{
	print_fields(apps_fields, COUNT(apps_fields));
}
