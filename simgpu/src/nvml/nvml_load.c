/*
 * libnvidia-ml.so.1: values that vary with the load.
 *
 * The daemon reports the utilization. Temperature, power and clocks follow from it by the fixed
 * rules below, so that tools show changing values.
 */
#include <stddef.h>

#include "client/channel.h"
#include "nvml/nvml_gpus.h"

#define IDLE_CELSIUS   34u
#define LOAD_CELSIUS   36u /* added at 100 percent utilization */
#define IDLE_MILLIWATT 55000u
#define IDLE_CLOCK_MHZ 210u

/* Stores the utilization in `load`. `out`, which gets the answer, must not be NULL. */
static nvmlReturn_t query_utilization(nvmlDevice_t device, const void *out,
				      struct sim_utilization *load)
{
	nvmlReturn_t result;

	NVML_TRY(nvml_enter(device));
	sim_look(device->link);
	result = nvml_query(device, SIM_UTILIZATION, load, sizeof(*load), NULL);
	nvml_leave();
	return result == NVML_SUCCESS && !out ? NVML_ERROR_INVALID_ARGUMENT : result;
}

NVML_API(nvmlDeviceGetPowerUsage, nvmlDevice_t device, unsigned int *milliwatt)
{
	struct sim_utilization load;

	NVML_TRY(query_utilization(device, milliwatt, &load));
	*milliwatt =
	    IDLE_MILLIWATT + (SIM_POWER_LIMIT_MW - IDLE_MILLIWATT) * load.gpu_percent / 100;
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct sim_utilization load;

	NVML_TRY(query_utilization(device, utilization, &load));
	*utilization = (nvmlUtilization_t){load.gpu_percent, load.memory_percent};
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetTemperature, nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
	struct sim_utilization load;

	NVML_TRY(query_utilization(device, celsius, &load));
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = IDLE_CELSIUS + LOAD_CELSIUS * load.gpu_percent / 100;
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_mhz(nvmlDevice_t device, unsigned int type, unsigned int id,
			      unsigned int *mhz)
{
	bool current = id == NVML_CLOCK_ID_CURRENT;
	struct sim_utilization load;

	NVML_TRY(query_utilization(device, mhz, &load));
	if (type >= NVML_CLOCK_COUNT || id >= NVML_CLOCK_ID_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (type == NVML_CLOCK_MEM)
		*mhz = SIM_MEMORY_CLOCK_KHZ / 1000;
	else
		*mhz = current && !load.gpu_percent ? IDLE_CLOCK_MHZ : SIM_CLOCK_KHZ / 1000;
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
