/*
 * Queries of a GPU that need no context.
 *
 * Identity and size come from the daemon's description of the GPU. The attributes are those of a
 * data-centre GPU of the same generation. Features that are not simulated are reported as missing,
 * so programs do without them.
 */
#include "base/driver.h"

#include <stdio.h>
#include <string.h>

enum { ATTRIBUTE_LAST = 147 };

CUresult device_get(CUdevice ordinal, struct device **device)
{
	if (ordinal < 0 || ordinal >= driver.devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = &driver.device[ordinal];
	return CUDA_SUCCESS;
}

struct device *device_of_uuid(const uint8_t *uuid)
{
	for (int i = 0; i < driver.devices; i++)
		if (memcmp(driver.device[i].gpu->uuid, uuid, 16) == 0)
			return &driver.device[i];
	return NULL;
}

CUresult device_alive(struct sim_link *link)
{
	return sim_link_alive(link) ? CUDA_SUCCESS : driver_result(SIM_GPU_LOST);
}

/* Checks a query's arguments. Returns without the lock: after cuInit, devices never change. */
static CUresult ask(CUdevice ordinal, const void *answer, struct device **device)
{
	TRY(driver_enter());
	return driver_leave(answer ? device_get(ordinal, device) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	struct device *device;

	TRY(ask(ordinal, out, &device));
	*out = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	TRY(driver_enter());
	if (!count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*count = driver.devices;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice ordinal)
{
	struct device *device;

	TRY(ask(ordinal, name, &device));
	if (bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "%s", device->gpu->name);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	struct device *device;

	TRY(ask(ordinal, uuid, &device));
	memcpy(uuid->bytes, device->gpu->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

/* Returns a MIG instance's own UUID instead of its GPU's. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	static const uint8_t none[16];
	struct device *device;

	TRY(cuDeviceGetUuid(uuid, ordinal));
	TRY(device_get(ordinal, &device));
	if (memcmp(device->gpu->mig_uuid, none, sizeof(none)) != 0)
		memcpy(uuid->bytes, device->gpu->mig_uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct device *device;

	TRY(ask(ordinal, bytes, &device));
	*bytes = device->gpu->memory_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal)
{
	size_t whole;

	TRY(cuDeviceTotalMem_v2(bytes ? &whole : NULL, ordinal));
	*bytes = whole > UINT32_MAX ? UINT32_MAX : (unsigned int)whole;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	const struct sim_gpu *gpu;
	struct device *device;

	TRY(ask(ordinal, value, &device));
	gpu = device->gpu;
	switch (attribute) {
#define X(number, answer)                                                                          \
	case number:                                                                               \
		*value = (int)(answer);                                                            \
		return CUDA_SUCCESS;
#include "abi/cuda_attributes.def"
#undef X
	}
	*value = 0;
	return attribute > 0 && attribute <= ATTRIBUTE_LAST ? CUDA_SUCCESS
							    : CUDA_ERROR_INVALID_VALUE;
}
