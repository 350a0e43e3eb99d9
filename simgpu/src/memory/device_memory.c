/*
 * GPU memory that the daemon allocates: device_take and related functions of driver.h.
 */
#include "memory/leaving.h"

CUresult device_take(struct device *device, uint64_t context, uint64_t bytes, uint64_t *id)
{
	struct sim_alloc request = {.context = context, .bytes = bytes};
	struct sim_id taken;
	enum sim_status status;

	do
		status = sim_call(device->link, SIM_MEMORY_ALLOC, &request, sizeof(request), &taken,
				  sizeof(taken), NULL);
	while (status == SIM_OUT_OF_MEMORY && leaving_go(device));
	if (status == SIM_OK)
		*id = taken.id;
	return driver_result(status);
}

CUresult device_give_back(struct device *device, uint64_t id)
{
	struct sim_id freed = {.id = id};

	return driver_result(
	    sim_call(device->link, SIM_MEMORY_FREE, &freed, sizeof(freed), NULL, 0, NULL));
}

CUresult device_export(struct device *device, uint64_t id, uint64_t *token)
{
	struct sim_id exported = {.id = id}, named;

	TRY(driver_result(sim_call(device->link, SIM_MEMORY_EXPORT, &exported, sizeof(exported),
				   &named, sizeof(named), NULL)));
	*token = named.id;
	return CUDA_SUCCESS;
}

CUresult device_import(struct device *device, uint64_t context, uint64_t token, uint64_t *id)
{
	struct sim_import request = {.context = context, .token = token};
	struct sim_imported imported;

	TRY(driver_result(sim_call(device->link, SIM_MEMORY_IMPORT, &request, sizeof(request),
				   &imported, sizeof(imported), NULL)));
	*id = imported.id;
	return CUDA_SUCCESS;
}

CUresult device_keep(struct device *device, uint64_t id, int fd)
{
	struct sim_keep kept = {.id = id, .fd = (uint32_t)fd};
	enum sim_status status =
	    sim_call(device->link, SIM_MEMORY_KEEP, &kept, sizeof(kept), NULL, 0, NULL);

	return status == SIM_NOT_SUPPORTED ? CUDA_SUCCESS : driver_result(status);
}
