/*
 * A compatible nvidia-smi: the command line, NVML's loading, and the choice of GPUs.
 *
 * Serves the commands that documents recommend to users; refuses any other with a message.
 */
#define _GNU_SOURCE
#include "smi/smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct smi_nvml nvml;

static const char help[] =
    "NVIDIA-SMI (a look-alike over NVML, part of gpuslice's simulated driver)\n"
    "\n"
    "    nvidia-smi [OPTION]...\n"
    "\n"
    "    -h, --help                  this text\n"
    "    -L, --list-gpus             one line per GPU\n"
    "    -i, --id=LIST               only these: index, UUID or PCI bus id, with commas\n"
    "    --query-gpu=FIELDS          values of each GPU; see --help-query-gpu\n"
    "    --query-compute-apps=FIELDS values of each process; see --help-query-compute-apps\n"
    "    --format=csv[,noheader][,nounits]\n"
    "    --version\n"
    "\n"
    "Without an option: the table.\n"
    "\n"
    "    nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv\n";

struct command_line {
	const char *ids, *gpu_fields, *apps_fields, *format;
	bool list, version;
};

static int load_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
	const char *missing = NULL;

	if (!library) {
		fputs("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please "
		      "make sure that the NVIDIA Display Driver is properly installed and present "
		      "in your system.\n"
		      "Please also try adding directory that contains libnvidia-ml.so to your "
		      "system PATH.\n",
		      stdout);
		return SMI_EXIT_NO_NVML;
	}
#define SMI_LOAD(name, arguments)                                                                  \
	*(void **)&nvml.name = dlsym(library, #name);                                              \
	if (!nvml.name)                                                                            \
		missing = #name;
	SMI_NVML_FUNCTIONS(SMI_LOAD)
	SMI_LOAD(nvmlErrorString, )
#undef SMI_LOAD
	if (missing) {
		printf("NVIDIA-SMI found a libnvidia-ml.so without %s.\n", missing);
		return SMI_EXIT_NO_NVML;
	}
	return 0;
}

static int start_nvml(void)
{
	int status = load_nvml();
	nvmlReturn_t result;

	if (status)
		return status;
	result = nvml.nvmlInit_v2();
	if (result == NVML_ERROR_DRIVER_NOT_LOADED)
		puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
		     "driver. Make sure that the latest NVIDIA driver is installed and running.\n");
	else if (result != NVML_SUCCESS)
		printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(result));
	return (int)result;
}

unsigned long long smi_mib(unsigned long long bytes)
{
	return bytes >> 20;
}

nvmlProcessInfo_t *smi_processes(nvmlDevice_t device, unsigned int *count)
{
	nvmlProcessInfo_t *rows = NULL;
	nvmlReturn_t result;
	unsigned int room = 0;

	/* Processes may start between the query of their number and the next. */
	do {
		free(rows);
		room = room * 2 + 16;
		rows = calloc(room, sizeof(*rows));
		*count = room;
		result = rows ? nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, count, rows)
			      : NVML_ERROR_MEMORY;
	} while (result == NVML_ERROR_INSUFFICIENT_SIZE && room < 1u << 20);
	if (result == NVML_SUCCESS && *count)
		return rows;
	free(rows);
	*count = 0;
	return NULL;
}

static bool is_named(nvmlDevice_t device, unsigned int index, const char *id)
{
	char text[SMI_TEXT];
	nvmlPciInfo_t pci;

	snprintf(text, sizeof(text), "%u", index);
	if (strcmp(text, id) == 0)
		return true;
	if (nvml.nvmlDeviceGetUUID(device, text, sizeof(text)) == NVML_SUCCESS &&
	    strcasecmp(text, id) == 0)
		return true;
	if (nvml.nvmlDeviceGetPciInfo_v3(device, &pci) != NVML_SUCCESS)
		return false;
	return strcasecmp(pci.busId, id) == 0 || strcasecmp(pci.busIdLegacy, id) == 0;
}

static bool is_selected(nvmlDevice_t device, unsigned int index, const char *ids)
{
	char id[SMI_TEXT];

	if (!ids)
		return true;
	while (*ids) {
		size_t length = strcspn(ids, ",");

		snprintf(id, sizeof(id), "%.*s", (int)length, ids);
		if (is_named(device, index, id))
			return true;
		ids += length + (ids[length] == ',');
	}
	return false;
}

static int select_gpus(const char *ids, struct smi_selection *gpus)
{
	nvmlReturn_t result;
	unsigned int total = 0;

	gpus->count = 0;
	result = nvml.nvmlDeviceGetCount_v2(&total);
	for (unsigned int i = 0; result == NVML_SUCCESS && i < total && i < SMI_MAX_GPUS; i++) {
		nvmlDevice_t device;

		result = nvml.nvmlDeviceGetHandleByIndex_v2(i, &device);
		if (result == NVML_SUCCESS && is_selected(device, i, ids)) {
			gpus->devices[gpus->count] = device;
			gpus->indices[gpus->count++] = i;
		} else if (result != NVML_SUCCESS) {
			printf("Unable to determine the device handle for GPU%u: %s\n", i,
			       nvml.nvmlErrorString(result));
		}
	}
	if (result != NVML_SUCCESS)
		return (int)result;
	if (!gpus->count) {
		puts("No devices were found");
		return SMI_EXIT_NOT_FOUND;
	}
	return 0;
}

/* The value of an option written as --name=value, else NULL. */
static const char *value_of(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return strncmp(argument, name, length) == 0 && argument[length] == '='
		   ? argument + length + 1
		   : NULL;
}

static int refuse(const char *what, const char *argument)
{
	printf("%s: \"%s\". Please run 'nvidia-smi -h' for help.\n", what, argument);
	return SMI_EXIT_ARGUMENT;
}

/* Stores the value of the option at argv[*at], which may be the next argument. */
static bool take_value(char **argv, int *at, struct command_line *line)
{
	const struct {
		const char *name, *brief;
		const char **where;
	} options[] = {
	    {"--id", "-i", &line->ids},
	    {"--query-gpu", NULL, &line->gpu_fields},
	    {"--query-compute-apps", NULL, &line->apps_fields},
	    {"--format", NULL, &line->format},
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		const char *value = value_of(argv[*at], options[i].name);
		const char *brief = options[i].brief;

		if (!value && brief)
			value = value_of(argv[*at], brief);
		if (!value && argv[*at + 1] && brief &&
		    (strcmp(argv[*at], brief) == 0 || strcmp(argv[*at], options[i].name) == 0))
			value = argv[++*at];
		if (value) {
			*options[i].where = value;
			return true;
		}
	}
	return false;
}

static int parse_format(const char *text, struct smi_format *format)
{
	const char *whole = text;
	bool csv = false;

	*format = (struct smi_format){.header = true, .units = true};
	while (text && *text) {
		size_t length = strcspn(text, ",");

		if (length == 3 && strncmp(text, "csv", length) == 0)
			csv = true;
		else if (length == 8 && strncmp(text, "noheader", length) == 0)
			format->header = false;
		else if (length == 7 && strncmp(text, "nounits", length) == 0)
			format->units = false;
		else
			return refuse("Invalid value of \"--format=\"", whole);
		text += length;
		text += strspn(text, ", ");
	}
	if (!csv) {
		puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.");
		return SMI_EXIT_ARGUMENT;
	}
	return 0;
}

static int print_version(void)
{
	char driver[SMI_TEXT] = "N/A", own[SMI_TEXT] = "N/A";
	int cuda = 0;

	nvml.nvmlSystemGetDriverVersion(driver, sizeof(driver));
	nvml.nvmlSystemGetNVMLVersion(own, sizeof(own));
	nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\n"
	       "CUDA Version        : %d.%d\n",
	       driver, own, driver, cuda / 1000, cuda % 1000 / 10);
	return 0;
}

static int run(const struct command_line *line)
{
	struct smi_selection gpus;
	struct smi_format format;
	int status;

	if (line->gpu_fields || line->apps_fields) {
		status = parse_format(line->format, &format);
		if (status)
			return status;
	}
	status = start_nvml();
	if (status)
		return status;
	if (line->version)
		return print_version();
	status = select_gpus(line->ids, &gpus);
	if (status)
		return status;
	if (line->gpu_fields)
		return smi_query_gpu(&gpus, line->gpu_fields, &format);
	if (line->apps_fields)
		return smi_query_apps(&gpus, line->apps_fields, &format);
	return line->list ? smi_list(&gpus) : smi_table(&gpus);
}

int main(int argc, char **argv)
{
	struct command_line line = {0};
	int status;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
			fputs(help, stdout);
			return 0;
		}
		if (strcmp(argv[i], "--help-query-gpu") == 0) {
			smi_print_gpu_fields();
			return 0;
		}
		if (strcmp(argv[i], "--help-query-compute-apps") == 0) {
			smi_print_apps_fields();
			return 0;
		}
		if (strcmp(argv[i], "-L") == 0 || strcmp(argv[i], "--list-gpus") == 0)
			line.list = true;
		else if (strcmp(argv[i], "--version") == 0)
			line.version = true;
		else if (!take_value(argv, &i, &line))
			return refuse("Invalid combination of input arguments", argv[i]);
	}
	status = run(&line);
	if (nvml.nvmlShutdown)
		nvml.nvmlShutdown();
	return status;
}
