/*
 * libnvidia-ml.so.1 from driver 615 on: memory limits of cgroups, which the daemon enforces.
 */
#include "nvml/nvml_gpus.h"

#include <string.h>

static nvmlReturn_t request(nvmlDevice_t device, enum sim_op op, const char *cgroup,
			    struct sim_limits *limits, uint32_t bytes, struct sim_limits_now *now)
{
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;

	NVML_TRY(nvml_enter(device));
	if (nvml_has_instance(sim_link_gpu(device->link))) {
		result = NVML_ERROR_NOT_SUPPORTED;
	} else if (cgroup && strlen(cgroup) < sizeof(limits->cgroup)) {
		strcpy(limits->cgroup, cgroup);
		result = nvml_request(device, op, limits, bytes, now, now ? sizeof(*now) : 0, NULL);
	}
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceSetMemoryLimits_v1, nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *wanted)
{
	struct sim_limits limits = {0};

	if (!wanted)
		return NVML_ERROR_INVALID_ARGUMENT;
	limits.soft_bytes = wanted->softLimit;
	limits.hard_bytes = wanted->hardLimit;
	return request(device, SIM_LIMITS_SET, wanted->nameSpace, &limits, sizeof(limits), NULL);
}

NVML_API(nvmlDeviceGetMemoryLimits_v1, nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out)
{
	struct sim_limits asked = {0};
	struct sim_limits_now now;

	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	NVML_TRY(request(device, SIM_LIMITS_GET, out->nameSpace, &asked, sizeof(struct sim_cgroup),
			 &now));
	out->softLimit = now.soft_bytes;
	out->hardLimit = now.hard_bytes;
	out->currentUsed = now.used_bytes;
	return NVML_SUCCESS;
}
