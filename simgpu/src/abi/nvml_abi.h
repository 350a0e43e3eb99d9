/*
 * NVML's types as in NVIDIA's nvml.h, for the functions that are implemented.
 *
 * Names, numbers and layouts are those of nvml.h 12 and 13. A test compares the sizes with
 * nvidia-ml-py's.
 */
#ifndef SIMGPU_NVML_ABI_H
#define SIMGPU_NVML_ABI_H

#include <stdint.h>

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_LIBRARY_NOT_FOUND = 12,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

#define NVML_DEVICE_UUID_BUFFER_SIZE	 80
#define NVML_DEVICE_NAME_V2_BUFFER_SIZE	 96
#define NVML_VERSION_BUFFER_SIZE	 80
#define NVML_INIT_FLAG_NO_GPUS		 1
#define NVML_INIT_FLAG_NO_ATTACH	 2
#define NVML_VALUE_NOT_AVAILABLE	 0xffffffffu
#define NVML_BRAND_NVIDIA		 14
#define NVML_CLOCK_MEM			 2
#define NVML_CLOCK_COUNT		 4
#define NVML_CLOCK_ID_COUNT		 4
#define NVML_CLOCK_ID_CURRENT		 0
#define NVML_CLOCK_ID_CUSTOMER_BOOST_MAX 3
#define NVML_TEMPERATURE_GPU		 0
#define NVML_MEMORY_V2			 0x02000028
#define NVML_PROCESS_DETAIL_LIST_V1	 0x01000018
#define NVML_PROCESSES_UTILIZATION_V1	 0x01000018
#define NVML_PROCESS_MODE_COMPUTE	 0
#define NVML_PROCESS_MODE_MPS		 2
#define NVML_FEATURE_DISABLED		 0
#define NVML_FEATURE_ENABLED		 1
#define NVML_P2P_CAPS_INDEX_COUNT	 5
#define NVML_P2P_STATUS_OK		 0
#define NVML_P2P_STATUS_NOT_SUPPORTED	 5

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* The value of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION is an unsigned int. */
#define NVML_FI_DEV_GET_GPU_RECOVERY_ACTION 230
#define NVML_VALUE_TYPE_UNSIGNED_INT	    1

typedef struct {
	unsigned int fieldId, scopeId;
	long long timestamp, latencyUsec;
	unsigned int valueType, nvmlReturn;
	union {
		double dVal;
		unsigned int uiVal;
		unsigned long long ullVal;
	} value;
} nvmlFieldValue_t;

typedef struct {
	unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
	unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

/* The row of the process functions of versions 2 and 3. */
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
	unsigned int version, mode, numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long timeStamp;
	unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
	unsigned long long timeStamp;
	unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
	unsigned int version, processSamplesCount;
	unsigned long long lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

#define NVML_DEVICE_MEMORY_LIMIT_MAX 0xffffffffffffffffull

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

/* Declares an exported function, then begins its definition. No header has its prototype. */
#define NVML_API(name, ...)                                                                        \
	nvmlReturn_t name(__VA_ARGS__);                                                            \
	__attribute__((visibility("default"))) nvmlReturn_t name(__VA_ARGS__)

#endif
