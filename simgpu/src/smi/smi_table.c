/*
 * nvidia-smi's table and list, with the column widths of NVIDIA's program of the 580 series.
 */
#define _GNU_SOURCE
#include "smi/smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RULE                                                                                       \
	"+-----------------------------------------+------------------------+--------------------" \
	"--+\n"
#define WIDE                                                                                       \
	"+---------------------------------------------------------------------------------------" \
	"--+\n"

/* Bytes of a formatted value, or of the text that replaces a value that NVML refuses. */
#define CELL 32

static void cell(char *out, nvmlReturn_t result, const char *format, unsigned int value)
{
	if (result == NVML_SUCCESS)
		snprintf(out, CELL, format, value);
	else
		snprintf(out, CELL, "%s", result == NVML_ERROR_GPU_IS_LOST ? "ERR!" : "N/A");
}

static const char *on_off(nvmlReturn_t result, unsigned int value)
{
	if (result != NVML_SUCCESS)
		return "N/A";
	return value ? "On" : "Off";
}

static void print_name_row(nvmlDevice_t device, unsigned int index)
{
	unsigned long long errors = 0;
	unsigned int persistence = 0, display = 0;
	nvmlReturn_t persistence_result, display_result;
	char name[SMI_TEXT] = "N/A", ecc[CELL];
	nvmlPciInfo_t pci = {0};

	nvml.nvmlDeviceGetName(device, name, sizeof(name));
	nvml.nvmlDeviceGetPciInfo_v3(device, &pci);
	persistence_result = nvml.nvmlDeviceGetPersistenceMode(device, &persistence);
	display_result = nvml.nvmlDeviceGetDisplayActive(device, &display);
	cell(ecc, nvml.nvmlDeviceGetTotalEccErrors(device, 1, 0, &errors), "%u",
	     (unsigned int)errors);
	printf("| %3u  %-26.26s %6s  |   %16s %3s | %20s |\n", index, name,
	       on_off(persistence_result, persistence), pci.busId, on_off(display_result, display),
	       ecc);
}

static void print_load_row(nvmlDevice_t device)
{
	char fan[CELL], temperature[CELL], state[CELL], draw[CELL], limit[CELL], load[CELL];
	char power[2 * CELL + 3], memory[2 * CELL] = "N/A";
	static const char *const modes[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
	nvmlMemory_v2_t pool = {.version = NVML_MEMORY_V2};
	nvmlUtilization_t rates = {0};
	nvmlReturn_t result;
	unsigned int value = 0;

	result = nvml.nvmlDeviceGetFanSpeed(device, &value);
	cell(fan, result, "%u%%", value);
	result = nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value);
	cell(temperature, result, "%uC", value);
	result = nvml.nvmlDeviceGetPerformanceState(device, &value);
	cell(state, result, "P%u", value);
	result = nvml.nvmlDeviceGetPowerUsage(device, &value);
	cell(draw, result, "%uW", value / 1000);
	result = nvml.nvmlDeviceGetEnforcedPowerLimit(device, &value);
	cell(limit, result, "%uW", value / 1000);
	snprintf(power, sizeof(power), "%s / %5s", draw, limit);
	result = nvml.nvmlDeviceGetMemoryInfo_v2(device, &pool);
	if (result == NVML_SUCCESS)
		snprintf(memory, sizeof(memory), "%7lluMiB / %6lluMiB", smi_mib(pool.used),
			 smi_mib(pool.total));
	result = nvml.nvmlDeviceGetUtilizationRates(device, &rates);
	cell(load, result, "%u%%", rates.gpu);
	value = 0;
	result = nvml.nvmlDeviceGetComputeMode(device, &value);
	printf("| %3s  %4s    %-4s %21s | %22s | %7s %12s |\n", fan, temperature, state, power,
	       memory, load, result == NVML_SUCCESS && value < 4 ? modes[value] : "N/A");
}

static void print_mig_row(nvmlDevice_t device)
{
	unsigned int now = 0, later = 0;
	const char *text = "N/A";

	if (nvml.nvmlDeviceGetMigMode(device, &now, &later) == NVML_SUCCESS)
		text = now ? "Enabled" : "Disabled";
	printf("|%41s|%24s| %20s |\n", "", "", text);
}

/* Returns the GPU's processes, to be freed by the caller. NULL and *count 0: there are none. */
static nvmlProcessInfo_t *processes_of(nvmlDevice_t device, unsigned int *count)
{
	nvmlProcessInfo_t *rows = NULL;
	nvmlReturn_t result;
	unsigned int capacity = 0;

	/* Further processes may start, so the space is enlarged until all rows fit. */
	do {
		free(rows);
		capacity = capacity * 2 + 16;
		rows = calloc(capacity, sizeof(*rows));
		*count = capacity;
		result = rows ? nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, count, rows)
			      : NVML_ERROR_MEMORY;
	} while (result == NVML_ERROR_INSUFFICIENT_SIZE && capacity < 1u << 20);
	if (result == NVML_SUCCESS && *count)
		return rows;
	free(rows);
	*count = 0;
	return NULL;
}

static void print_processes(const struct smi_gpus *gpus)
{
	bool none = true;

	fputs("\n" WIDE
	      "| Processes:                                                                       "
	      "       |\n"
	      "|  GPU   GI   CI              PID   Type   Process name                        GPU "
	      "Memory |\n"
	      "|        ID   ID                                                               Usage"
	      "      |\n"
	      "|================================================================================="
	      "========|\n",
	      stdout);
	for (unsigned int i = 0; i < gpus->count; i++) {
		unsigned int count;
		nvmlProcessInfo_t *rows = processes_of(gpus->devices[i], &count);

		for (unsigned int j = 0; j < count; j++) {
			char name[SMI_TEXT];

			if (nvml.nvmlSystemGetProcessName(rows[j].pid, name, sizeof(name)) !=
			    NVML_SUCCESS)
				snprintf(name, sizeof(name), "[Not Found]");
			printf("| %4u   N/A  N/A %15u      C   %-33.33s %9lluMiB |\n", i,
			       rows[j].pid, name, smi_mib(rows[j].usedGpuMemory));
			none = false;
		}
		free(rows);
	}
	if (none)
		printf("|  %-87s|\n", "No running processes found");
	fputs(WIDE, stdout);
}

int smi_table(const struct smi_gpus *gpus)
{
	char driver[SMI_TEXT] = "N/A", cuda[CELL], stamp[SMI_TEXT] = "";
	time_t now = time(NULL);
	struct tm local;
	int version = 0;

	if (localtime_r(&now, &local))
		strftime(stamp, sizeof(stamp), "%a %b %e %H:%M:%S %Y", &local);
	nvml.nvmlSystemGetDriverVersion(driver, sizeof(driver));
	nvml.nvmlSystemGetCudaDriverVersion_v2(&version);
	snprintf(cuda, sizeof(cuda), "%d.%d", version / 1000, version % 1000 / 10);
	printf("%s\n" WIDE "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n" RULE,
	       stamp, driver, driver, cuda);
	fputs(
	    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. "
	    "ECC |\n"
	    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  "
	    "Compute "
	    "M. |\n"
	    "|                                         |                        |               "
	    "MIG "
	    "M. |\n"
	    "|=========================================+========================+================="
	    "=====|\n",
	    stdout);
	for (unsigned int i = 0; i < gpus->count; i++) {
		print_name_row(gpus->devices[i], i);
		print_load_row(gpus->devices[i]);
		print_mig_row(gpus->devices[i]);
		fputs(RULE, stdout);
	}
	print_processes(gpus);
	return 0;
}

int smi_list(const struct smi_gpus *gpus)
{
	for (unsigned int i = 0; i < gpus->count; i++) {
		char name[SMI_TEXT] = "", uuid[SMI_TEXT] = "";

		nvml.nvmlDeviceGetName(gpus->devices[i], name, sizeof(name));
		nvml.nvmlDeviceGetUUID(gpus->devices[i], uuid, sizeof(uuid));
		printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
	}
	return 0;
}
