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
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
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
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*count = driver.devices;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice ordinal)
{
	struct device *device;
	CUresult result = ask(ordinal, name, &device);

	if (result != CUDA_SUCCESS)
		return result;
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

static const struct {
	int attribute, value;
} fixed_attributes[] =
    {
	{1, 1024},					  /* threads per block */
	{2, 1024},					  /* block x, y, z */
	{3, 1024},	   {4, 64},	 {5, 2147483647}, /* grid x, y, z */
	{6, 65535},	   {7, 65535},	 {8, 49152},	  /* shared memory per block */
	{9, 65536},					  /* constant memory */
	{10, 32},					  /* warp */
	{11, 2147483647},				  /* pitch */
	{12, 65536},					  /* registers per block */
	{14, 512},					  /* texture alignment */
	{15, 1},					  /* copies beside kernels */
	{17, 0},					  /* no watchdog */
	{18, 0},					  /* not integrated */
	{19, 1},					  /* maps host memory */
	{20, 0},					  /* compute mode: default */
	{21, 131072},					  /* texture and surface sizes */
	{22, 131072},	   {23, 65536},	 {24, 16384},
	{25, 16384},	   {26, 16384},	 {27, 32768},
	{28, 32768},	   {29, 2048},	 {30, 512},
	{31, 1},	/* concurrent kernels */
	{32, 1},	/* ECC */
	{35, 0},	/* not TCC */
	{38, 41943040}, /* L2 */
	{39, 2048},	/* threads per multiprocessor */
	{40, 3},	/* copy engines */
	{41, 1},	/* unified addresses */
	{42, 32768},	   {43, 2048},	 {44, 1},
	{45, 32768},	   {46, 32768},	 {47, 8192},
	{48, 8192},	   {49, 32768},	 {51, 32},
	{52, 32768},	   {53, 32768},	 {54, 2046},
	{55, 32768},	   {56, 131072}, {57, 65536},
	{58, 16384},	   {59, 16384},	 {60, 16384},
	{61, 32768},	   {62, 2048},	 {63, 32768},
	{64, 32768},	   {65, 2048},	 {66, 32768},
	{67, 32768},	   {68, 2046},	 {69, 268435456},
	{70, 131072},	   {71, 65000},	 {72, 2097120},
	{73, 32768},	   {74, 32768},	 {77, 32768},
	{78, 1},				       /* stream priorities */
	{79, 1},	   {80, 1},	 {81, 167936}, /* shared memory per multiprocessor */
	{82, 65536},	   {83, 1}, /* managed memory; 89, from host and device at once: not so */
	{84, 0},	   {85, 0},	 {86, 0},
	{87, 2},	   {88, 0},		  /* no pageable access */
	{89, 0},	   {90, 1},	 {91, 0}, /* host registration: not simulated */
	{92, 0},				  /* stream memory operations: not simulated */
	{93, 0},	   {94, 0},	 {95, 1}, /* cooperative launch */
	{96, 0},	   {97, 166912},	  /* shared memory per block, opt-in */
	{98, 0},	   {99, 0},	 {100, 0},
	{101, 0},	   {102, 1}, /* virtual memory management */
	{103, 1},	   {104, 0},	 {105, 0},
	{106, 32},				      /* blocks per multiprocessor */
	{107, 0},	   {108, 0},		      /* persisting L2 */
	{109, 0},	   {110, 0},	 {111, 1024}, /* reserved shared memory per block */
	{112, 1},	   {113, 0},	 {114, 0},
	{115, 1}, /* memory pools */
	{116, 0},	   {117, 0},	 {118, 0},
	{119, 1}, /* memory pools travel as file descriptors */
	{121, 1},	   {122, 0},	 {123, 0},
	{124, 0},	   {125, 0}, /* IPC: not simulated */
	{126, 1},	   {127, 0},	 {128, 1},
	{129, 0},	   {130, 0},	 {131, -1},
	{132, 1}, /* multicast */
	{133, 0}, /* no MPS */
	{134, -1},	   {135, 0},	 {136, 0},
	{137, 0},	   {138, 0},	 {139, 0x20B010DE},
	{140, 0x134F10DE}, {141, 1},	 {142, 0},
	{143, 0},	   {144, 0},	 {145, 1},
	{146, 0},	   {147, 0},
};

static bool has_clusters(const struct sim_gpu *gpu)
{
	return gpu->capability_major >= 9;
}

static bool gpu_attribute(const struct sim_gpu *gpu, int attribute, int *value)
{
	const struct {
		int attribute;
		uint32_t value;
	} rows[] = {
	    {13, gpu->clock_khz},     {16, gpu->multiprocessors},  {33, gpu->pci_bus},
	    {34, gpu->pci_device},    {36, gpu->memory_clock_khz}, {37, gpu->bus_width_bits},
	    {50, gpu->pci_domain},    {75, gpu->capability_major}, {76, gpu->capability_minor},
	    {120, has_clusters(gpu)},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (rows[i].attribute == attribute) {
			*value = (int)rows[i].value;
			return true;
		}
	}
	return false;
}

CUresult device_attribute(const struct device *device, int attribute, int *value)
{
	if (gpu_attribute(device->gpu, attribute, value))
		return CUDA_SUCCESS;
	for (size_t i = 0; i < sizeof(fixed_attributes) / sizeof(*fixed_attributes); i++) {
		if (fixed_attributes[i].attribute == attribute) {
			*value = fixed_attributes[i].value;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	struct device *device;
	CUresult result = ask(ordinal, value, &device);

	return result == CUDA_SUCCESS ? device_attribute(device, attribute, value) : result;
}

CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice ordinal)
{
	struct device *device;
	CUresult result = ask(ordinal, text, &device);

	if (result != CUDA_SUCCESS)
		return result;
	/* "0000:17:00.0" and its end. */
	if (bytes < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(text, (size_t)bytes, "%04X:%02X:%02X.0", device->gpu->pci_domain & 0xffff,
		 device->gpu->pci_bus & 0xff, device->gpu->pci_device & 0xff);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text)
{
	unsigned int domain, bus, number = 0;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !text)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &number) < 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &number) < 2)
			return driver_leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (int i = 0; i < driver.devices; i++) {
		const struct sim_gpu *gpu = driver.device[i].gpu;

		if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == number) {
			*out = i;
			return driver_leave(CUDA_SUCCESS);
		}
	}
	return driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
	struct device *device;
	CUresult result = ask(ordinal, can, &device);

	if (result == CUDA_SUCCESS)
		result = ask(peer, can, &device);
	if (result == CUDA_SUCCESS)
		*can = 0;
	return result;
}
