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
	CUresult result = ask(ordinal, out, &device);

	if (result == CUDA_SUCCESS)
		*out = ordinal;
	return result;
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
	CUresult result = ask(ordinal, uuid, &device);

	if (result == CUDA_SUCCESS)
		memcpy(uuid->bytes, device->gpu->uuid, sizeof(uuid->bytes));
	return result;
}

/* For a MIG instance, its own. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	static const uint8_t none[16];
	struct device *device;
	CUresult result = ask(ordinal, uuid, &device);

	if (result == CUDA_SUCCESS)
		memcpy(uuid->bytes,
		       memcmp(device->gpu->mig_uuid, none, sizeof(none)) ? device->gpu->mig_uuid
									 : device->gpu->uuid,
		       sizeof(uuid->bytes));
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct device *device;
	CUresult result = ask(ordinal, bytes, &device);

	if (result == CUDA_SUCCESS)
		*bytes = device->gpu->memory_bytes;
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal)
{
	size_t whole;
	CUresult result = cuDeviceTotalMem_v2(bytes ? &whole : NULL, ordinal);

	if (result == CUDA_SUCCESS)
		*bytes = whole > UINT32_MAX ? UINT32_MAX : (unsigned int)whole;
	return result;
}

/* 0 for all others up to ATTRIBUTE_LAST. */
static const struct {
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

static bool gpu_attribute(const struct sim_gpu *gpu, int attribute, int *value)
{
	const struct {
		int attribute;
		uint32_t value;
	} rows[] = {
	    {13, gpu->clock_khz},	 {16, gpu->multiprocessors},
	    {33, gpu->pci_bus},		 {34, gpu->pci_device},
	    {36, gpu->memory_clock_khz}, {37, gpu->bus_width_bits},
	    {50, gpu->pci_domain},	 {75, gpu->capability_major},
	    {76, gpu->capability_minor}, {120, gpu->capability_major >= 9}, /* clusters */
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (rows[i].attribute == attribute) {
			*value = (int)rows[i].value;
			return true;
		}
	}
	return false;
}

static CUresult device_attribute(const struct device *device, int attribute, int *value)
{
	if (gpu_attribute(device->gpu, attribute, value))
		return CUDA_SUCCESS;
	for (size_t i = 0; i < sizeof(fixed_attributes) / sizeof(*fixed_attributes); i++) {
		if (fixed_attributes[i].attribute == attribute) {
			*value = fixed_attributes[i].value;
			return CUDA_SUCCESS;
		}
	}
	*value = 0;
	return attribute > 0 && attribute <= ATTRIBUTE_LAST ? CUDA_SUCCESS
							    : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	struct device *device;
	CUresult result = ask(ordinal, value, &device);

	return result == CUDA_SUCCESS ? device_attribute(device, attribute, value) : result;
}
