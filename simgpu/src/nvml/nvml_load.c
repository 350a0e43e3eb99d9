/*
 * libnvidia-ml.so.1: values that vary with the load.
 *
 * Utilization is the daemon's. Temperature, power and clocks are derived from it by the fixed rules
 * below, so that tools show changing values.
 */
#include "client/channel.h"
#include "nvml/nvml_gpus.h"

#include <stdbool.h>
#include <stddef.h>

#define IDLE_CELSIUS   34u
#define LOAD_CELSIUS   36u /* added at full load */
#define IDLE_MILLIWATT 55000u
#define IDLE_CLOCK_MHZ 210u

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

/* A number that varies with the load. */
#define LOAD_NUMBER(function, type, expression)                                                    \
	NVML_API(function, nvmlDevice_t device, type *value)                                       \
	{                                                                                          \
		struct sim_utilization load;                                                       \
		struct sim_gpu gpu;                                                                \
		nvmlReturn_t result = nvml_describe(device, &gpu);                                 \
                                                                                                   \
		if (result == NVML_SUCCESS && !value)                                              \
			result = NVML_ERROR_INVALID_ARGUMENT;                                      \
		if (result == NVML_SUCCESS)                                                        \
			result = query_utilization(device, &load);                                 \
		if (result == NVML_SUCCESS)                                                        \
			*value = (type)(expression);                                               \
		return result;                                                                     \
	}

static unsigned int power_mw(const struct sim_gpu *gpu, const struct sim_utilization *load)
{
	unsigned int idle_mw =
	    gpu->power_limit_mw < IDLE_MILLIWATT ? gpu->power_limit_mw : IDLE_MILLIWATT;

	return idle_mw +
	       (unsigned int)((uint64_t)(gpu->power_limit_mw - idle_mw) * load->gpu_percent / 100);
}

LOAD_NUMBER(nvmlDeviceGetPowerUsage, unsigned int, power_mw(&gpu, &load))

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

static nvmlReturn_t clock_mhz(nvmlDevice_t device, unsigned int type, unsigned int id,
			      unsigned int *mhz)
{
	bool current = id == NVML_CLOCK_ID_CURRENT;
	struct sim_utilization load = {0};
	struct sim_gpu gpu;
	nvmlReturn_t result = nvml_describe(device, &gpu);

	if (result != NVML_SUCCESS)
		return result;
	if (!mhz || type >= NVML_CLOCK_COUNT || id >= NVML_CLOCK_ID_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (current)
		result = query_utilization(device, &load);
	if (result != NVML_SUCCESS)
		return result;
	if (type == NVML_CLOCK_MEM)
		*mhz = gpu.memory_clock_khz / 1000;
	else if (current && !load.gpu_percent)
		*mhz = IDLE_CLOCK_MHZ;
	else
		*mhz = gpu.clock_khz / 1000;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetClockInfo, nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
	return clock_mhz(device, type, NVML_CLOCK_ID_CURRENT, mhz);
}

NVML_API(nvmlDeviceGetMaxClockInfo, nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
	return clock_mhz(device, type, NVML_CLOCK_ID_CUSTOMER_BOOST_MAX, mhz);
}

NVML_API(nvmlDeviceGetClock, nvmlDevice_t device, unsigned int type, unsigned int id,
	 unsigned int *mhz)
{
	return clock_mhz(device, type, id, mhz);
}
