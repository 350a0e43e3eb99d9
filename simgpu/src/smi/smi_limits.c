/*
 * nvidia-smi memory-limits: sets or prints the limits of a cgroup, in MiB.
 *
 * NVML has these functions from driver 615 on. The text of the output is this program's own.
 */
#include "smi/smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
	const char *cgroup, *soft, *hard, *index;
	bool set, get;
};

static bool parse(int count, char **words, struct arguments *out)
{
	const struct {
		const char *option, **value;
	} valued[] = {{"-n", &out->cgroup},
		      {"--soft-limit", &out->soft},
		      {"--hard-limit", &out->hard},
		      {"-i", &out->index}};

	for (int i = 0; i < count; i++) {
		const char **value = NULL;

		for (size_t j = 0; j < sizeof(valued) / sizeof(*valued); j++)
			if (strcmp(words[i], valued[j].option) == 0)
				value = valued[j].value;
		if (strcmp(words[i], "--set") == 0)
			out->set = true;
		else if (strcmp(words[i], "--get") == 0)
			out->get = true;
		else if (value && i + 1 < count)
			*value = words[++i];
		else
			return false;
	}
	return out->cgroup && out->set != out->get && (!out->set || (out->soft && out->hard));
}

static unsigned long long bytes(const char *mib)
{
	unsigned long long value = strtoull(mib, NULL, 10);

	return value > NVML_DEVICE_MEMORY_LIMIT_MAX >> 20 ? NVML_DEVICE_MEMORY_LIMIT_MAX
							  : value << 20;
}

static nvmlReturn_t of_gpu(nvmlDevice_t device, unsigned int index, const struct arguments *asked)
{
	nvmlReturn_t (*set)(nvmlDevice_t, nvmlSetMemoryLimits_v1_t *);
	nvmlReturn_t (*get)(nvmlDevice_t, nvmlGetMemoryLimits_v1_t *);
	nvmlGetMemoryLimits_v1_t now = {.nameSpace = asked->cgroup};
	nvmlReturn_t result;

	*(void **)&set = dlsym(RTLD_DEFAULT, "nvmlDeviceSetMemoryLimits_v1");
	*(void **)&get = dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryLimits_v1");
	if (!set || !get)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (asked->set) {
		nvmlSetMemoryLimits_v1_t wanted = {asked->cgroup, bytes(asked->soft),
						   bytes(asked->hard)};

		result = set(device, &wanted);
		if (result != NVML_SUCCESS)
			return result;
	}
	result = get(device, &now);
	if (result != NVML_SUCCESS)
		return result;
	printf("GPU %u: soft limit %llu MiB, hard limit ", index, now.softLimit >> 20);
	if (now.hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX)
		printf("none");
	else
		printf("%llu MiB", now.hardLimit >> 20);
	printf(", used %llu MiB\n", now.currentUsed >> 20);
	return NVML_SUCCESS;
}

int smi_limits(const struct smi_gpus *gpus, int count, char **words)
{
	struct arguments asked = {0};

	if (!parse(count, words, &asked)) {
		puts("memory-limits: required: -n CGROUP, and --get or --set with --soft-limit "
		     "MIB and --hard-limit MIB. Please run 'nvidia-smi -h' for help.");
		return SMI_EXIT_ARGUMENT;
	}
	for (unsigned int i = 0; i < gpus->count; i++) {
		nvmlReturn_t result;

		if (asked.index && strtoul(asked.index, NULL, 10) != i)
			continue;
		result = of_gpu(gpus->devices[i], i, &asked);
		if (result != NVML_SUCCESS) {
			printf("GPU %u: %s\n", i, nvml.nvmlErrorString(result));
			return (int)result;
		}
	}
	return 0;
}
