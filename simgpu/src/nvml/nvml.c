/*
 * libnvidia-ml.so.1: initialisation, shutdown, the system and device handles.
 *
 * One lock around every call, as in the real library: a shutdown in one thread waits for the
 * queries of the others. A fork child works too: at its first call it opens links of its own.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool forks_watched;
static unsigned int init_count;
static int gpu_count;
static struct nvmlDevice_st gpus[SIM_MAX_GPUS], instances[SIM_MAX_GPUS];

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Under the lock. Not pthread_once, which glibc has at GLIBC_2.34: containers have older ones. */
static void watch_forks(void)
{
	if (!forks_watched)
		forks_watched = pthread_atfork(before_fork, after_fork, after_fork) == 0;
}

/* Under the lock. */
static int open_gpus(void)
{
	struct sim_link *links[SIM_MAX_GPUS];

	gpu_count = sim_links_open(links, SIM_MAX_GPUS, SIM_ROLE_NVML);
	for (int i = 0; i < gpu_count; i++) {
		gpus[i].link = links[i];
		instances[i] = (struct nvmlDevice_st){links[i], true};
	}
	return gpu_count;
}

/* Under the lock. */
static void close_gpus(void)
{
	for (int i = 0; i < gpu_count; i++)
		sim_links_close(&gpus[i].link, 1);
	gpu_count = 0;
}

bool nvml_has_instance(const struct sim_gpu *gpu)
{
	static const uint8_t none[16];

	return memcmp(gpu->mig_uuid, none, sizeof(none)) != 0;
}

nvmlReturn_t nvml_enter_any(void)
{
	pthread_mutex_lock(&lock);
	if (!init_count) {
		pthread_mutex_unlock(&lock);
		return NVML_ERROR_UNINITIALIZED;
	}
	if (gpu_count && !sim_link_mine(gpus[0].link)) {
		close_gpus();
		open_gpus();
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_enter(nvmlDevice_t device)
{
	nvmlReturn_t result = nvml_enter_any();

	if (result != NVML_SUCCESS)
		return result;
	for (int i = 0; i < gpu_count; i++) {
		if (device == &gpus[i] ||
		    (device == &instances[i] && nvml_has_instance(sim_link_gpu(gpus[i].link))))
			return NVML_SUCCESS;
	}
	nvml_leave();
	return NVML_ERROR_INVALID_ARGUMENT;
}

void nvml_leave(void)
{
	pthread_mutex_unlock(&lock);
}

unsigned int nvml_index(nvmlDevice_t device)
{
	return (unsigned int)(device - (device->instance ? instances : gpus));
}

nvmlDevice_t nvml_gpu_of(nvmlDevice_t instance)
{
	return &gpus[nvml_index(instance)];
}

nvmlDevice_t nvml_instance_of(nvmlDevice_t gpu)
{
	return &instances[nvml_index(gpu)];
}

nvmlReturn_t nvml_query(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
			uint32_t *got)
{
	static const nvmlReturn_t results[] = {
	    [SIM_OK] = NVML_SUCCESS,
	    [SIM_OUT_OF_MEMORY] = NVML_ERROR_MEMORY,
	    [SIM_INVALID_VALUE] = NVML_ERROR_INVALID_ARGUMENT,
	    [SIM_NOT_FOUND] = NVML_ERROR_NOT_FOUND,
	    [SIM_NOT_SUPPORTED] = NVML_ERROR_NOT_SUPPORTED,
	    [SIM_GPU_LOST] = NVML_ERROR_GPU_IS_LOST,
	};

	return results[sim_call(device->link, op, NULL, 0, reply, cap, got)];
}

void nvml_format_uuid(const struct sim_gpu *gpu, bool instance, char *text)
{
	const uint8_t *u = instance ? gpu->mig_uuid : gpu->uuid;

	snprintf(text, NVML_DEVICE_UUID_BUFFER_SIZE,
		 "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 instance ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8],
		 u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

nvmlReturn_t nvml_copy_text(const char *text, char *out, unsigned int out_bytes)
{
	size_t bytes = strlen(text) + 1;

	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (bytes > out_bytes)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, bytes);
	return NVML_SUCCESS;
}

unsigned long long nvml_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

NVML_API(nvmlInitWithFlags, unsigned int flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	watch_forks();
	if (!init_count && !open_gpus())
		result = NVML_ERROR_DRIVER_NOT_LOADED;
	else if (flags & ~(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
		result = NVML_ERROR_INVALID_ARGUMENT;
	else
		init_count++;
	pthread_mutex_unlock(&lock);
	return result;
}

NVML_API(nvmlInit_v2, void)
{
	return nvmlInitWithFlags(0);
}

NVML_API(nvmlInit, void)
{
	return nvmlInitWithFlags(0);
}

NVML_API(nvmlShutdown, void)
{
	pthread_mutex_lock(&lock);
	if (init_count && !--init_count)
		close_gpus();
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result);
__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
	    "Success",
	    "Uninitialized",
	    "Invalid Argument",
	    "Not Supported",
	    "Insufficient Permissions",
	    "Already Initialized",
	    "Not Found",
	    "Insufficient Size",
	    "Insufficient External Power",
	    "Driver Not Loaded",
	    "Timeout",
	    "Interrupt Request Issue",
	    "NVML Shared Library Not Found",
	    "Function Not Found",
	    "Corrupted infoROM",
	    "GPU is lost",
	    "GPU requires reset",
	    "GPU access blocked by the operating system",
	    "Driver/library version mismatch",
	    "In use by another client",
	    "Insufficient Memory",
	    "No data",
	    "vGPU ECC not supported",
	    "Insufficient Resources",
	    "Invalid Frequency",
	    "Argument version mismatch",
	    "Requested functionality has been deprecated",
	    "System is not in ready state",
	    "No supported GPUs were found",
	    "Resource not in correct state to perform requested operation",
	};

	if ((unsigned int)result < sizeof(texts) / sizeof(texts[0]))
		return texts[result];
	return "Unknown Error";
}

NVML_API(nvmlSystemGetDriverVersion, char *version, unsigned int length)
{
	char text[NVML_VERSION_BUFFER_SIZE] = "";
	nvmlReturn_t result = nvml_enter_any();

	if (result != NVML_SUCCESS)
		return result;
	if (gpu_count)
		snprintf(text, sizeof(text), "%s", sim_link_gpu(gpus[0].link)->driver_version);
	nvml_leave();
	return nvml_copy_text(text, version, length);
}

/* The library's own version, available without a driver. */
NVML_API(nvmlSystemGetNVMLVersion, char *version, unsigned int length)
{
	return nvml_copy_text("13.580.65.06", version, length);
}

NVML_API(nvmlSystemGetCudaDriverVersion_v2, int *version)
{
	nvmlReturn_t result = nvml_enter_any();

	if (result != NVML_SUCCESS)
		return result;
	if (version)
		*version = gpu_count ? (int)sim_link_gpu(gpus[0].link)->cuda_version : 0;
	nvml_leave();
	return version ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlSystemGetCudaDriverVersion, int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The tables are private to NVIDIA's own programs: every one is unknown here. */
NVML_API(nvmlInternalGetExportTable, const void **table, const void *id)
{
	(void)table, (void)id;
	return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlSystemGetProcessName, unsigned int pid, char *name, unsigned int length)
{
	nvmlReturn_t result;
	char path[32];
	ssize_t got;
	int fd;

	result = nvml_enter_any();
	if (result != NVML_SUCCESS)
		return result;
	nvml_leave();
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	got = read(fd, name, length - 1);
	close(fd);
	if (got < 0)
		return NVML_ERROR_NOT_FOUND;
	/* Arguments are NUL-terminated; the first one ends the name. */
	name[got] = '\0';
	return NVML_SUCCESS;
}

NVML_API(nvmlDeviceGetCount_v2, unsigned int *count)
{
	nvmlReturn_t result = nvml_enter_any();

	if (result != NVML_SUCCESS)
		return result;
	if (count)
		*count = (unsigned int)gpu_count;
	nvml_leave();
	return count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlDeviceGetCount, unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

/* A handle to a GPU that has fallen off the bus is refused, as by the real library. */
static nvmlReturn_t hand_out(int index, nvmlReturn_t absent, nvmlDevice_t *device)
{
	struct sim_memory memory;
	nvmlReturn_t result;

	if (index < 0 || index >= gpu_count)
		return absent;
	result = nvml_query(&gpus[index], SIM_MEMORY_INFO, &memory, sizeof(memory), NULL);
	if (result == NVML_SUCCESS)
		*device = &gpus[index];
	return result;
}

NVML_API(nvmlDeviceGetHandleByIndex_v2, unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t result = nvml_enter_any();

	if (result != NVML_SUCCESS)
		return result;
	result = NVML_ERROR_INVALID_ARGUMENT;
	if (device && index < SIM_MAX_GPUS)
		result = hand_out((int)index, NVML_ERROR_INVALID_ARGUMENT, device);
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceGetHandleByIndex, unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
	nvmlReturn_t result = nvml_enter_any();
	char text[NVML_DEVICE_UUID_BUFFER_SIZE];
	bool instance = uuid && strncmp(uuid, "MIG-", 4) == 0;
	int found = -1;

	if (result != NVML_SUCCESS)
		return result;
	result = NVML_ERROR_INVALID_ARGUMENT;
	if (uuid && device) {
		for (int i = 0; i < gpu_count && found < 0; i++) {
			nvml_format_uuid(sim_link_gpu(gpus[i].link), instance, text);
			if (strcasecmp(text, uuid) == 0)
				found = i;
		}
		result = hand_out(found, NVML_ERROR_NOT_FOUND, device);
		if (result == NVML_SUCCESS && instance)
			*device = &instances[found];
	}
	nvml_leave();
	return result;
}

/* DOMAIN:BUS:DEVICE.FUNCTION, the domain of any width or absent. */
static int parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus,
			unsigned int *device)
{
	unsigned int function = 0;
	int end = 0;

	if (sscanf(text, "%x:%x:%x%n.%x%n", domain, bus, device, &end, &function, &end) >= 3)
		return text[end] == '\0' && function == 0;
	*domain = 0;
	if (sscanf(text, "%x:%x%n.%x%n", bus, device, &end, &function, &end) >= 2)
		return text[end] == '\0' && function == 0;
	return 0;
}

NVML_API(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, nvmlDevice_t *device)
{
	unsigned int domain, bus, slot;
	nvmlReturn_t result = nvml_enter_any();
	int found = -1;

	if (result != NVML_SUCCESS)
		return result;
	result = NVML_ERROR_INVALID_ARGUMENT;
	if (bus_id && device && parse_bus_id(bus_id, &domain, &bus, &slot)) {
		for (int i = 0; i < gpu_count && found < 0; i++) {
			const struct sim_gpu *gpu = sim_link_gpu(gpus[i].link);

			if (gpu->pci_domain == domain && gpu->pci_bus == bus &&
			    gpu->pci_device == slot)
				found = i;
		}
		result = hand_out(found, NVML_ERROR_NOT_FOUND, device);
	}
	nvml_leave();
	return result;
}

NVML_API(nvmlDeviceGetHandleByPciBusId, const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
