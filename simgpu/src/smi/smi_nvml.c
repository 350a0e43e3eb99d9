/* NVML, loaded at run time: see smi.h. */
#include "smi/smi.h"

#include <dlfcn.h>
#include <stdio.h>

struct smi_nvml nvml;

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

int smi_start(void)
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
