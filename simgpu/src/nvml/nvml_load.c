/*
 * libnvidia-ml.so.1: values that vary with the load.
 *
 * Utilization is the daemon's. Temperature and power are derived from it by the fixed rules
 * below, so that tools show changing values.
 */
#include "client/channel.h"
#include "nvml/nvml_gpus.h"

#include <stdbool.h>
#include <stddef.h>

#define IDLE_CELSIUS   34u
#define LOAD_CELSIUS   36u /* added at full load */
#define IDLE_MILLIWATT 55000u

static nvmlReturn_t query_utilization(nvmlDevice_t device, struct sim_utilization *out)
{
	nvmlReturn_t result = nvml_enter(device);

	if (result != NVML_SUCCESS)
		return result;
	sim_look(device->link);
	result = nvml_query(device, SIM_UTILIZATION, out, sizeof(*out), NULL);
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceGetPowerUsage, nvmlDevice_t device, unsigned int *milliwatt)
{
	struct sim_utilization load;
	struct sim_gpu gpu;
	unsigned int idle_mw;

	TRY_NVML(nvml_describe(device, &gpu));
	TRY_NVML(query_utilization(device, &load));
	if (!milliwatt)
		return NVML_ERROR_INVALID_ARGUMENT;
	idle_mw = gpu.power_limit_mw < IDLE_MILLIWATT ? gpu.power_limit_mw : IDLE_MILLIWATT;
	*milliwatt = idle_mw + (unsigned int)((uint64_t)(gpu.power_limit_mw - idle_mw) *
					      load.gpu_percent / 100);
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct sim_utilization load;
	nvmlReturn_t result = query_utilization(device, &load);

	if (result == NVML_SUCCESS && !utilization)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS) {
		utilization->gpu = load.gpu_percent;
		utilization->memory = load.memory_percent;
	}
	return result;
}

NVML_API(nvmlDeviceGetTemperature, nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
	struct sim_utilization load;
	nvmlReturn_t result = query_utilization(device, &load);

	if (result == NVML_SUCCESS && (!celsius || sensor != NVML_TEMPERATURE_GPU))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*celsius = IDLE_CELSIUS + LOAD_CELSIUS * load.gpu_percent / 100;
	return result;
}
