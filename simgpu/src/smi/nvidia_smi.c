/*
 * A compatible nvidia-smi: the command line.
 *
 * It has the commands that documents recommend to users. It refuses any other with a message.
 */
#include "smi/smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "NVIDIA-SMI (a look-alike over NVML, part of gpuslice's simulated driver)\n"
    "\n"
    "    nvidia-smi [OPTION]...\n"
    "\n"
    "    -h, --help                  this text\n"
    "    -L, --list-gpus             one line per GPU\n"
    "    --query-gpu=FIELDS          values of each GPU: index, uuid, name, driver_version,\n"
    "                                memory.total, memory.used, memory.free, utilization.gpu\n"
    "    --format=csv[,noheader][,nounits]\n"
    "    memory-limits --set -n CGROUP --soft-limit MIB --hard-limit MIB [-i INDEX]\n"
    "    memory-limits --get -n CGROUP [-i INDEX]\n"
    "                                limits of a cgroup's memory, from driver 615 on\n"
    "\n"
    "Without an option: the table.\n"
    "\n"
    "    nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv\n";

struct command_line {
	const char *fields, *format;
	bool list;
	int limits; /* number of words after memory-limits, at `words` */
	char **words;
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

static int start(void)
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

static int find_gpus(struct smi_gpus *gpus)
{
	unsigned int total = 0;
	nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&total);

	for (gpus->count = 0; result == NVML_SUCCESS && gpus->count < total; gpus->count++) {
		if (gpus->count == SMI_MAX_GPUS)
			break;
		result =
		    nvml.nvmlDeviceGetHandleByIndex_v2(gpus->count, &gpus->devices[gpus->count]);
		if (result != NVML_SUCCESS)
			printf("Unable to determine the device handle for GPU%u: %s\n", gpus->count,
			       nvml.nvmlErrorString(result));
	}
	if (result != NVML_SUCCESS)
		return (int)result;
	if (!gpus->count) {
		puts("No devices were found");
		return SMI_EXIT_NOT_FOUND;
	}
	return 0;
}

/* Returns the value of an option that is written as --name=value, or NULL. */
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

static int run(const struct command_line *line)
{
	struct smi_format format;
	struct smi_gpus gpus;
	int status = line->fields ? parse_format(line->format, &format) : 0;

	if (!status)
		status = start();
	if (!status)
		status = find_gpus(&gpus);
	if (status)
		return status;
	if (line->words)
		return smi_limits(&gpus, line->limits, line->words);
	if (line->fields)
		return smi_query_gpu(&gpus, line->fields, &format);
	return line->list ? smi_list(&gpus) : smi_table(&gpus);
}

int main(int argc, char **argv)
{
	struct command_line line = {0};
	int status;

	if (argc > 1 && strcmp(argv[1], "memory-limits") == 0) {
		line.limits = argc - 2;
		line.words = argv + 2;
		argc = 1;
	}
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
			fputs(help, stdout);
			return 0;
		}
		if (strcmp(argv[i], "-L") == 0 || strcmp(argv[i], "--list-gpus") == 0)
			line.list = true;
		else if (value_of(argv[i], "--query-gpu"))
			line.fields = value_of(argv[i], "--query-gpu");
		else if (value_of(argv[i], "--format"))
			line.format = value_of(argv[i], "--format");
		else
			return refuse("Invalid combination of input arguments", argv[i]);
	}
	status = run(&line);
	if (nvml.nvmlShutdown)
		nvml.nvmlShutdown();
	return status;
}
