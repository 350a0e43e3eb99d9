/*
 * nvidia-smi --query-gpu: the requested names, a header, and a line of CSV per GPU.
 *
 * A value that NVML refuses is printed as NVIDIA's program prints it: [N/A] if it is not supported,
 * else the reason in brackets.
 */
#include "smi/smi.h"

#include <stdio.h>
#include <string.h>

#define MAX_FIELDS 64

enum kind { INDEX, UUID, NAME, DRIVER, MEMORY_TOTAL, MEMORY_USED, MEMORY_FREE, UTILIZATION };

struct field {
	const char *name, *unit;
	enum kind kind;
};

static const struct field table[] = {
    {"index", NULL, INDEX},
    {"uuid", NULL, UUID},
    {"name", NULL, NAME},
    {"driver_version", NULL, DRIVER},
    {"memory.total", "MiB", MEMORY_TOTAL},
    {"memory.used", "MiB", MEMORY_USED},
    {"memory.free", "MiB", MEMORY_FREE},
    {"utilization.gpu", "%", UTILIZATION},
};

static const struct field *find(const char *name, int length)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		if ((int)strlen(table[i].name) == length &&
		    strncmp(table[i].name, name, (size_t)length) == 0)
			return &table[i];
	return NULL;
}

static nvmlReturn_t read_field(enum kind kind, nvmlDevice_t device, unsigned int index, char *out)
{
	nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
	nvmlUtilization_t rates = {0};
	nvmlReturn_t result = NVML_SUCCESS;
	unsigned long long value = index;

	switch (kind) {
	case UUID:
		return nvml.nvmlDeviceGetUUID(device, out, SMI_TEXT);
	case NAME:
		return nvml.nvmlDeviceGetName(device, out, SMI_TEXT);
	case DRIVER:
		return nvml.nvmlSystemGetDriverVersion(out, SMI_TEXT);
	case INDEX:
		break;
	case UTILIZATION:
		result = nvml.nvmlDeviceGetUtilizationRates(device, &rates);
		value = rates.gpu;
		break;
	default:
		result = nvml.nvmlDeviceGetMemoryInfo_v2(device, &memory);
		value = smi_mib(kind == MEMORY_TOTAL  ? memory.total
				: kind == MEMORY_USED ? memory.used
						      : memory.free);
	}
	snprintf(out, SMI_TEXT, "%llu", value);
	return result;
}

static int parse(const char *text, const struct field **fields, int *count)
{
	for (*count = 0;; text++) {
		int length;

		text += strspn(text, " ");
		length = (int)strcspn(text, ", ");
		if (*count == MAX_FIELDS) {
			printf("At most %d fields can be queried.\n", MAX_FIELDS);
			return SMI_EXIT_ARGUMENT;
		}
		fields[*count] = find(text, length);
		if (!fields[(*count)++]) {
			printf("Field \"%.*s\" is not a valid field to query.\n\n", length, text);
			return SMI_EXIT_ARGUMENT;
		}
		text += length;
		text += strspn(text, " ");
		if (*text != ',')
			return 0;
	}
}

static void print_value(const struct field *field, nvmlDevice_t device, unsigned int index,
			bool units)
{
	char value[SMI_TEXT] = "";
	nvmlReturn_t result = read_field(field->kind, device, index, value);

	if (result == NVML_ERROR_NOT_SUPPORTED)
		fputs("[N/A]", stdout);
	else if (result != NVML_SUCCESS)
		printf("[%s]", nvml.nvmlErrorString(result));
	else
		printf("%s%s%s", value, field->unit && units ? " " : "",
		       field->unit && units ? field->unit : "");
}

int smi_query_gpu(const struct smi_gpus *gpus, const char *text, const struct smi_format *format)
{
	const struct field *fields[MAX_FIELDS];
	int count, status = parse(text, fields, &count);

	if (status)
		return status;
	for (int i = 0; format->header && i < count; i++)
		printf("%s%s%s%s%s", fields[i]->name, fields[i]->unit ? " [" : "",
		       fields[i]->unit ? fields[i]->unit : "", fields[i]->unit ? "]" : "",
		       i + 1 < count ? ", " : "\n");
	for (unsigned int gpu = 0; gpu < gpus->count; gpu++)
		for (int i = 0; i < count; i++) {
			print_value(fields[i], gpus->devices[gpu], gpu, format->units);
			fputs(i + 1 < count ? ", " : "\n", stdout);
		}
	return 0;
}
