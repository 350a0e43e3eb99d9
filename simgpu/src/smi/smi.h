/*
 * The compatible nvidia-smi: what its files share.
 *
 * It is an ordinary client of NVML. As NVIDIA's program does, it loads libnvidia-ml.so.1 at run
 * time and finds each function by name. So a library that interposes NVML also affects this
 * program.
 */
#ifndef SIMGPU_SMI_H
#define SIMGPU_SMI_H

#include <stdbool.h>
#include <stddef.h>

#include "abi/nvml_abi.h"

/* All functions of NVML that the program calls. */
#define SMI_NVML_FUNCTIONS(X)                                                                      \
	X(nvmlInit_v2, (void))                                                                     \
	X(nvmlShutdown, (void))                                                                    \
	X(nvmlSystemGetDriverVersion, (char *, unsigned int))                                      \
	X(nvmlSystemGetCudaDriverVersion_v2, (int *))                                              \
	X(nvmlSystemGetProcessName, (unsigned int, char *, unsigned int))                          \
	X(nvmlDeviceGetCount_v2, (unsigned int *))                                                 \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *))                           \
	X(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned int))                                 \
	X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned int))                                 \
	X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *))                                \
	X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                           \
	X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                      \
	X(nvmlDeviceGetTemperature, (nvmlDevice_t, unsigned int, unsigned int *))                  \
	X(nvmlDeviceGetFanSpeed, (nvmlDevice_t, unsigned int *))                                   \
	X(nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned int *))                                 \
	X(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t, unsigned int *))                         \
	X(nvmlDeviceGetPersistenceMode, (nvmlDevice_t, unsigned int *))                            \
	X(nvmlDeviceGetDisplayActive, (nvmlDevice_t, unsigned int *))                              \
	X(nvmlDeviceGetPerformanceState, (nvmlDevice_t, unsigned int *))                           \
	X(nvmlDeviceGetComputeMode, (nvmlDevice_t, unsigned int *))                                \
	X(nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned int *, unsigned int *))                    \
	X(nvmlDeviceGetTotalEccErrors,                                                             \
	  (nvmlDevice_t, unsigned int, unsigned int, unsigned long long *))                        \
	X(nvmlDeviceGetComputeRunningProcesses_v3,                                                 \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *))

struct smi_nvml {
#define SMI_MEMBER(name, arguments) nvmlReturn_t(*name) arguments;
	SMI_NVML_FUNCTIONS(SMI_MEMBER)
#undef SMI_MEMBER
	const char *(*nvmlErrorString)(nvmlReturn_t);
};

#define SMI_MAX_GPUS 64
#define SMI_TEXT     256

struct smi_gpus {
	nvmlDevice_t devices[SMI_MAX_GPUS];
	unsigned int count;
};

struct smi_format {
	bool header, units;
};

extern struct smi_nvml nvml;

static inline unsigned long long smi_mib(unsigned long long bytes)
{
	return (bytes + (1 << 19)) >> 20;
}

/* Each function returns the program's exit status. */
int smi_list(const struct smi_gpus *gpus);
int smi_limits(const struct smi_gpus *gpus, int count, char **words);
int smi_table(const struct smi_gpus *gpus);
int smi_query_gpu(const struct smi_gpus *gpus, const char *fields, const struct smi_format *format);

/* NVIDIA's program documents these exit statuses. Others are NVML's own codes. */
enum { SMI_EXIT_ARGUMENT = 2, SMI_EXIT_NOT_FOUND = 6, SMI_EXIT_NO_NVML = 12 };

#endif
