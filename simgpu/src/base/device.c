/*
 * Queries of a GPU that need no context.
 *
 * Identity and size are from the daemon's description of the GPU. The attributes are those of a
 * data-centre GPU of that generation, except for features that are not simulated: their attributes
 * report that, and programs take their other path.
 */
#include "base/driver.h"

#include <stdio.h>
#include <string.h>

CUresult device_get(CUdevice ordinal, struct device **device)
{
	if (ordinal < 0 || ordinal >= driver.devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = &driver.device[ordinal];
	return CUDA_SUCCESS;
}

CUresult device_alive(struct sim_link *link)
{
	return sim_link_alive(link) ? CUDA_SUCCESS : driver_result(SIM_GPU_LOST);
}

/* Checks common to most queries; the devices never change after cuInit. */
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

/* For a MIG instance, its own. */
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

/* 0 for all others up to ATTRIBUTE_LAST. */
static const struct attribute {
	int attribute, value;
} fixed_attributes[] = {
    {1, 1024},					   /* threads per block */
    {2, 1024},					   /* block x, y, z */
    {3, 1024},	      {4, 64},	  {5, 2147483647}, /* grid x, y, z */
    {6, 65535},	      {7, 65535}, {8, 49152},	   /* shared memory per block */
    {9, 65536},					   /* constant memory */
    {10, 32},					   /* warp */
    {11, 2147483647},				   /* pitch */
    {12, 65536},				   /* registers per block */
    {14, 512},					   /* texture alignment */
    {15, 1},					   /* copies beside kernels */
    {19, 1},					   /* maps host memory */
    {31, 1},					   /* concurrent kernels */
    {32, 1},					   /* ECC */
    {38, 41943040},				   /* L2 */
    {39, 2048},					   /* threads per multiprocessor */
    {40, 3},					   /* copy engines */
    {41, 1},					   /* unified addresses */
    {78, 1},					   /* stream priorities */
    {79, 1},	      {80, 1},	  {81, 167936},	   /* shared memory per multiprocessor */
    {82, 65536},      {83, 1},		   /* managed memory, not from host and device at once */
    {87, 2},	      {90, 1},	  {95, 1}, /* cooperative launch */
    {97, 166912},			   /* shared memory per block, opt-in */
    {102, 1},				   /* virtual memory management */
    {103, 1},	      {106, 32},	   /* blocks per multiprocessor */
    {111, 1024},			   /* reserved shared memory per block */
    {112, 1},	      {115, 1},		   /* memory pools */
    {119, 1},				   /* memory pools travel as file descriptors */
    {121, 1},	      {126, 1},	  {128, 1},	   {131, -1}, {132, 1}, /* multicast */
    {134, -1},	      {141, 1},	  {145, 1},
};

enum { ATTRIBUTE_LAST = 147 };

static const struct attribute *find(const struct attribute *rows, size_t count, int attribute)
{
	for (size_t i = 0; i < count; i++)
		if (rows[i].attribute == attribute)
			return &rows[i];
	return NULL;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	const struct attribute *found;
	const struct sim_gpu *gpu;
	struct device *device;

	TRY(ask(ordinal, value, &device));
	gpu = device->gpu;
	const struct attribute rows[] = {
	    {13, (int)gpu->clock_khz},	      {16, (int)gpu->multiprocessors},
	    {33, (int)gpu->pci_bus},	      {34, (int)gpu->pci_device},
	    {36, (int)gpu->memory_clock_khz}, {37, (int)gpu->bus_width_bits},
	    {50, (int)gpu->pci_domain},	      {75, (int)gpu->capability_major},
	    {76, (int)gpu->capability_minor}, {120, gpu->capability_major >= 9}, /* clusters */
	};

	found = find(rows, sizeof(rows) / sizeof(*rows), attribute);
	if (!found)
		found = find(fixed_attributes, sizeof(fixed_attributes) / sizeof(*fixed_attributes),
			     attribute);
	*value = found ? found->value : 0;
	return attribute > 0 && attribute <= ATTRIBUTE_LAST ? CUDA_SUCCESS
							    : CUDA_ERROR_INVALID_VALUE;
}
