/*
 * The few types and codes of NVML that the library touches, as nvml.h of driver 580 states them.
 */
#ifndef VGPU_NVML_ABI_H
#define VGPU_NVML_ABI_H

typedef int nvmlReturn_t; /* an enum in nvml.h, passed as an int */
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
	unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
	unsigned int version;				/* in: size | number << 24 */
	unsigned long long total, reserved, free, used; /* bytes */
} nvmlMemory_v2_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_DEVICE_UUID_V2_BUFFER_SIZE = 96,
};

_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");

#endif
