/* See device_cards.h. */
#include "device_cards.h"

#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"
#include "init.h"
#include "vgpu/region.h"

enum { CACHED_DEVICES = 64 };

/* Address on the bus, as one number that orders as PCI addresses do; 0 where it is not told. */
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

/* How many of the devices that the program sees come before this one on the bus. */
static int number_of(CUdevice device)
{
	uint64_t own = bus_address(device);
	int count = 0, before = 0;

	(void)real_cuDeviceGetCount(&count);
	for (CUdevice other = 0; other < count; other++)
		before += bus_address(other) < own;
	return before;
}

/* Of a MIG instance the first call names the instance and the second its card. */
static int find_card(CUdevice device)
{
	CUuuid uuid;
	int number = number_of(device), card = VGPU_CARD_NOT_GRANTED;

	if (real_cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
		card = vgpu_card_of_uuid(uuid.bytes, number);
	if (card == VGPU_CARD_NOT_GRANTED && real_cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
		card = vgpu_card_of_uuid(uuid.bytes, number);
	return card;
}

/* Ordinals keep their card for the life of the process. Cached as card + 1; 0 is unknown. */
int vgpu_card_of_device(CUdevice device)
{
	static uint8_t cache[CACHED_DEVICES];
	bool cacheable = device >= 0 && device < CACHED_DEVICES;
	int card = cacheable ? __atomic_load_n(&cache[device], __ATOMIC_RELAXED) - 1 : -1;

	if (card >= 0)
		return card;
	card = find_card(device);
	if (card >= 0 && cacheable)
		__atomic_store_n(&cache[device], (uint8_t)(card + 1), __ATOMIC_RELAXED);
	return card;
}

void vgpu_meet_devices(void)
{
	int count = 0;

	if (!vgpu_limits_are_numbered())
		return;
	(void)real_cuDeviceGetCount(&count);
	for (CUdevice device = 0; device < count; device++)
		(void)vgpu_card_of_device(device);
}
