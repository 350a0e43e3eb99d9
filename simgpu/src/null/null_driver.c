/*
 * A CUDA driver without a daemon or GPU, and almost without system calls.
 *
 * Tests measure what a library in front of this driver costs, and race many processes through it at
 * full speed. Each process has its own device, whose addresses have no memory.
 *
 * Environment, read at cuInit:
 *   NULL_DRIVER_BYTES            size of the device; 40 GiB where absent
 *   NULL_DRIVER_LATENCY_NS       time that each allocation and free sleeps
 */
#define _GNU_SOURCE
#pragma GCC visibility push(default)
#include "abi/cuda_entry.h"
#pragma GCC visibility pop
#include "null/null_memory.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

static struct {
	bool ready;
	uint64_t total_bytes, latency_ns;
} device;

static __thread CUcontext current;
/* The only context's handle is the address of `primary`, each event's that of `some_event`. */
static char primary, some_event;

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void take_time(void)
{
	struct timespec span = {.tv_sec = (time_t)(device.latency_ns / 1000000000u),
				.tv_nsec = (long)(device.latency_ns % 1000000000u)};

	if (device.latency_ns)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
}

static bool begin(void)
{
	device.total_bytes = number("NULL_DRIVER_BYTES", 40ull << 30);
	device.latency_ns = number("NULL_DRIVER_LATENCY_NS", 0);
	return null_memory_begin(device.total_bytes);
}

/* As with a real driver, threads may call it concurrently. The others wait for the first. */
CUresult cuInit(unsigned int flags)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	bool ready;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	ready = device.ready = device.ready || begin();
	pthread_mutex_unlock(&lock);
	return ready ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = SIM_CUDA_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return device.ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	*out = 0;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* GPU-6e756c6c-0000-4000-8000-000000000000 */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	static const CUuuid fixed = {{'n', 'u', 'l', 'l', 0, 0, 0x40, 0, 0x80}};

	*uuid = fixed;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	*value = attribute == 75 ? 8 : attribute == 16 ? 108 : 0;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUcontext context(void)
{
	return (CUcontext)(void *)&primary;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	*out = context();
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	current = handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	*out = current;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *out)
{
	*out = 0;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult may_allocate(const void *out, size_t bytes)
{
	if (!device.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	take_time();
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	CUresult result = may_allocate(out, bytes);
	uint64_t address;

	if (result != CUDA_SUCCESS)
		return result;
	address = null_memory_take(NULL_HEAP_DEVICE, bytes);
	if (!address)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = address;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	if (!device.ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!address)
		return CUDA_SUCCESS;
	take_time();
	return null_memory_give(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	*free_bytes = device.total_bytes - null_memory_used_bytes();
	*total_bytes = device.total_bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
				       int option)
{
	if (!bytes || !properties || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = NULL_BLOCK_BYTES;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *out)
{
	*out = context();
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	*status = 0;
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int own;
	int former = own;

	own = *mode;
	*mode = former;
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	*out = (CUevent)(void *)&some_event;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	*ms = 0;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Defines functions that have no effect but need a context. */
#define IN_CONTEXT(name, ...)                                                                      \
	CUresult name(__VA_ARGS__)                                                                 \
	{                                                                                          \
		return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;                        \
	}

IN_CONTEXT(cuEventRecord, CUevent event, CUstream stream)
IN_CONTEXT(cuEventQuery, CUevent event)
IN_CONTEXT(cuEventDestroy_v2, CUevent event)
IN_CONTEXT(cuLaunchKernel, CUfunction function, unsigned int grid_x, unsigned int grid_y,
	   unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
	   unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
IN_CONTEXT(cuGraphLaunch, CUgraphExec graph, CUstream stream)
IN_CONTEXT(cuKernelSetAttribute, int attribute, int value, CUkernel kernel, CUdevice on)

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	*function = (CUfunction)(void *)kernel;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
