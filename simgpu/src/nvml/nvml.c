/*
 * libnvidia-ml.so.1: initialisation, shutdown, and the GPUs behind the device handles.
 *
 * A shutdown waits for the queries of other threads. Queries do not wait for each other, so a GPU
 * that does not answer delays only calls about that GPU. NVML also works in a fork child, which
 * opens its own links at its first call.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Init, shutdown and a fork child's first call hold the lock for writing, queries for reading. */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static bool forks_watched;
static unsigned int init_count;
static int gpu_count;
static struct nvmlDevice_st gpus[SIM_MAX_GPUS], instances[SIM_MAX_GPUS];

static void before_fork(void)
{
	pthread_rwlock_rdlock(&lock);
}

static void after_fork(void)
{
	pthread_rwlock_unlock(&lock);
}

/* The child has one thread. Threads of the parent that held the lock do not exist in it. */
static void after_fork_in_child(void)
{
	static const pthread_rwlock_t fresh = PTHREAD_RWLOCK_INITIALIZER;

	lock = fresh;
}

/* Called with the lock. pthread_once needs GLIBC_2.34, and containers may have an older glibc. */
static void watch_forks(void)
{
	if (!forks_watched)
		forks_watched = pthread_atfork(before_fork, after_fork, after_fork_in_child) == 0;
}

/* Called with the lock. */
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

/* Called with the lock. */
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

/* Called with the lock. */
static bool is_parents(void)
{
	return gpu_count && !sim_link_mine(gpus[0].link);
}

nvmlReturn_t nvml_enter_any(void)
{
	for (;;) {
		pthread_rwlock_rdlock(&lock);
		if (!init_count) {
			pthread_rwlock_unlock(&lock);
			return NVML_ERROR_UNINITIALIZED;
		}
		if (!is_parents())
			return NVML_SUCCESS;
		pthread_rwlock_unlock(&lock);
		pthread_rwlock_wrlock(&lock);
		if (init_count && is_parents()) {
			close_gpus();
			open_gpus();
		}
		pthread_rwlock_unlock(&lock);
	}
}

nvmlReturn_t nvml_enter(nvmlDevice_t device)
{
	NVML_TRY(nvml_enter_any());
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
	pthread_rwlock_unlock(&lock);
}

int nvml_gpu_count(void)
{
	return gpu_count;
}

nvmlDevice_t nvml_gpu(int index)
{
	return &gpus[index];
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

nvmlReturn_t nvml_request(nvmlDevice_t device, enum sim_op op, const void *req, uint32_t n,
			  void *reply, uint32_t cap, uint32_t *got)
{
	static const nvmlReturn_t results[] = {
	    [SIM_OK] = NVML_SUCCESS,
	    [SIM_OUT_OF_MEMORY] = NVML_ERROR_MEMORY,
	    [SIM_INVALID_VALUE] = NVML_ERROR_INVALID_ARGUMENT,
	    [SIM_NOT_FOUND] = NVML_ERROR_NOT_FOUND,
	    [SIM_NOT_SUPPORTED] = NVML_ERROR_NOT_SUPPORTED,
	    [SIM_GPU_LOST] = NVML_ERROR_GPU_IS_LOST,
	    [SIM_NO_PERMISSION] = NVML_ERROR_NO_PERMISSION,
	};

	return results[sim_call(device->link, op, req, n, reply, cap, got)];
}

nvmlReturn_t nvml_query(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
			uint32_t *got)
{
	return nvml_request(device, op, NULL, 0, reply, cap, got);
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

	pthread_rwlock_wrlock(&lock);
	watch_forks();
	if (!init_count && !open_gpus())
		result = NVML_ERROR_DRIVER_NOT_LOADED;
	else if (flags & ~(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
		result = NVML_ERROR_INVALID_ARGUMENT;
	else
		init_count++;
	pthread_rwlock_unlock(&lock);
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
	pthread_rwlock_wrlock(&lock);
	if (init_count && !--init_count)
		close_gpus();
	pthread_rwlock_unlock(&lock);
	return NVML_SUCCESS;
}
