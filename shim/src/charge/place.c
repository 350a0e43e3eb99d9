/* See place.h. The driver reports the current context and its GPU's UUID. */
#include "charge/place.h"

#include "charge/contexts.h"
#include "charge/enforcement.h"
#include "charge/generations.h"
#include "loader/hooks.h"
#include "region/directory.h"
#include "vgpu/region.h"

enum { CACHED_DEVICES = 64, POINTER_DEVICE_ORDINAL = 9 };

/* The device's PCI address, as a number by which devices are ordered. Unknown parts are 0. */
static uint64_t bus_address(CUdevice device)
{
	static const int attributes[] = {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
					 CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
					 CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
	uint64_t address = 0;

	for (unsigned int i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
		int part = 0;

		(void)real_cuDeviceGetAttribute(&part, attributes[i], device);
		address = address << 20 | (uint32_t)part;
	}
	return address;
}

/* The number of devices visible to the program that precede this one on the bus. */
static int number_of(CUdevice device)
{
	uint64_t own = bus_address(device);
	int count = 0, before = 0;

	(void)real_cuDeviceGetCount(&count);
	for (CUdevice other = 0; other < count; other++)
		before += bus_address(other) < own;
	return before;
}

/* For a MIG instance cuDeviceGetUuid_v2 returns the instance's UUID, cuDeviceGetUuid the GPU's. */
static int find_gpu(CUdevice device)
{
	CUuuid uuid;
	int number = number_of(device), gpu = VGPU_GPU_NOT_GRANTED;

	if (real_cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
		gpu = vgpu_gpu_of_uuid(uuid.bytes, number);
	if (gpu == VGPU_GPU_NOT_GRANTED && real_cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
		gpu = vgpu_gpu_of_uuid(uuid.bytes, number);
	return gpu;
}

/* The GPU's index in the grant. It cannot change, so it is cached, plus 1; 0 means unknown. */
static int gpu_of_device(CUdevice device)
{
	static uint8_t cache[CACHED_DEVICES];
	bool cacheable = device >= 0 && device < CACHED_DEVICES;
	int gpu = cacheable ? __atomic_load_n(&cache[device], __ATOMIC_RELAXED) - 1 : -1;

	if (gpu >= 0)
		return gpu;
	gpu = find_gpu(device);
	if (gpu >= 0 && cacheable)
		__atomic_store_n(&cache[device], (uint8_t)(gpu + 1), __ATOMIC_RELAXED);
	return gpu;
}

void vgpu_register_devices(void)
{
	int count = 0;

	if (!vgpu_directory_environment())
		return;
	(void)real_cuDeviceGetCount(&count);
	for (CUdevice device = 0; device < count; device++)
		(void)gpu_of_device(device);
}

/* False: no limit applies to the process, or limits failed. The caller then returns `*result`. */
static bool is_managed(struct vgpu_place *place, CUresult *result)
{
	enum vgpu_enforcement enforcement = vgpu_enforcement_begin();

	*place = (struct vgpu_place){VGPU_GPU_UNMANAGED, 0};
	*result =
	    enforcement == VGPU_ENFORCEMENT_FAILED ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
	return enforcement == VGPU_ENFORCEMENT_ACTIVE;
}

/* Drivers before CUDA 13 report only the current context's device, so make it current. */
static CUresult device_of(CUcontext context, CUdevice *device)
{
	CUcontext current, popped;
	CUresult result;

	if (!context || (real_cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context))
		return real_cuCtxGetDevice(device);
	result = real_cuCtxGetDevice_v2(device, context);
	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	result = real_cuCtxPushCurrent_v2(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = real_cuCtxGetDevice(device);
	(void)real_cuCtxPopCurrent_v2(&popped);
	return result;
}

/* What vgpu_place_only returns: the GPU's index, plus 1. 0: not known, UINT32_MAX: several GPUs. */
static uint32_t only;

static void learn_only(const struct vgpu_place *place)
{
	int count = 0;

	if (real_cuDeviceGetCount(&count) == CUDA_SUCCESS)
		__atomic_store_n(
		    &only, count == 1 && place->gpu >= 0 ? (uint32_t)place->gpu + 1 : UINT32_MAX,
		    __ATOMIC_RELAXED);
}

bool vgpu_place_only(struct vgpu_place *place)
{
	uint32_t gpu = __atomic_load_n(&only, __ATOMIC_RELAXED);

	if (!gpu || gpu == UINT32_MAX || vgpu_enforcement_begin() != VGPU_ENFORCEMENT_ACTIVE)
		return false;
	*place = (struct vgpu_place){(int)gpu - 1, 0};
	return true;
}

/* Find the context in the table, or else query the driver, which reports an error for an invalid
 * handle. */
static CUresult find(CUcontext context, struct vgpu_place *place)
{
	CUdevice device;
	CUresult result;

	if (context && vgpu_generation_known(context, place)) {
		if (!__atomic_load_n(&only, __ATOMIC_RELAXED))
			learn_only(place);
		return CUDA_SUCCESS;
	}
	result = device_of(context, &device);
	if (result != CUDA_SUCCESS)
		return result;
	place->gpu = gpu_of_device(device);
	if (context && place->gpu != VGPU_GPU_NOT_GRANTED)
		vgpu_context_first_used(context, 0, place, NULL);
	return CUDA_SUCCESS;
}

CUresult vgpu_place_current(struct vgpu_place *place)
{
	CUcontext context = NULL;
	CUresult result;

	if (!is_managed(place, &result))
		return result;
	/* Drivers before CUDA 4 lack this call. A context then has no generation. */
	result = real_cuCtxGetCurrent(&context);
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
		return result;
	return find(context, place);
}

CUresult vgpu_place_of_context(CUcontext context, struct vgpu_place *place)
{
	CUresult result;

	if (!context)
		return vgpu_place_current(place);
	return is_managed(place, &result) ? find(context, place) : result;
}

CUresult vgpu_place_of_device(CUdevice device, struct vgpu_place *place)
{
	CUresult result;

	if (is_managed(place, &result))
		place->gpu = gpu_of_device(device);
	return result;
}

CUresult vgpu_place_of_address(CUdeviceptr address, struct vgpu_place *place)
{
	CUdevice device;
	CUresult result = real_cuPointerGetAttribute(&device, POINTER_DEVICE_ORDINAL, address);

	return result == CUDA_SUCCESS ? vgpu_place_of_device(device, place) : result;
}

enum { MANAGED = 2 }; /* CU_MEM_ALLOCATION_TYPE_MANAGED */

static bool is_on_device(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
	       location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
}

CUresult vgpu_place_of_location(const CUmemLocation *location, struct vgpu_place *place,
				CUdevice *device)
{
	CUuuid uuid;
	CUresult result;

	*place = (struct vgpu_place){.gpu = VGPU_GPU_UNMANAGED};
	*device = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
		      ? location->id & 0xff
		      : location->id;
	if (!is_on_device(location))
		return CUDA_SUCCESS;
	result = vgpu_place_of_device(*device, place);
	if (result == CUDA_SUCCESS && place->gpu == VGPU_GPU_NOT_GRANTED &&
	    real_cuDeviceGetUuid(&uuid, *device) != CUDA_SUCCESS)
		place->gpu = VGPU_GPU_UNMANAGED;
	return result;
}

CUresult vgpu_place_of_pool(const CUmemPoolProps *properties, struct vgpu_place *place)
{
	CUdevice device = 0;
	CUresult result;

	if (properties->allocation_type != MANAGED || is_on_device(&properties->location)) {
		result = vgpu_place_of_location(&properties->location, place, &device);
	} else {
		(void)real_cuCtxGetDevice(&device); /* if no context is current, `device` stays 0 */
		result = vgpu_place_of_device(device, place);
	}
	if (properties->allocation_type == MANAGED && place->gpu >= 0 &&
	    !vgpu_managed_is_charged(place->gpu))
		place->gpu = VGPU_GPU_UNMANAGED;
	return result;
}
