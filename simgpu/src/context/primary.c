/*
 * Primary contexts: one per device and process, shared by all callers that retain it.
 *
 * The handle stays the same until the process ends. It names a destroyed context from the last
 * release, or from a reset, until the next retain. Even then it can be made current. A reset
 * releases nothing: each caller that has retained the context must still release it.
 */
#include "graph/graph.h"
#include "memory/pool.h"

#include <stddef.h>

static CUresult retain(struct device *device, CUcontext *out)
{
	struct context *context = device->primary;

	if (!context) {
		context = object_new(OBJECT_CONTEXT, sizeof(*context));
		context->primary = true;
		device->primary = context;
	}
	if (!context->alive) {
		TRY(context_open(device, context));
		context->api_version = CONTEXT_API_VERSION;
	}
	context->retained++;
	*out = object_handle(context);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(out ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE);
	return driver_leave(retain(device, out));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	struct device *device;
	struct context *context;
	CUresult result = CUDA_SUCCESS;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	context = device->primary;
	if (!context || !context->retained)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--context->retained == 0 && context->alive)
		result = context_close(context);
	return driver_leave(result);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	struct chunk *gone = NULL;
	struct graph_block *graphs_gone = NULL;
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(device_get(ordinal, &device));
	if (device->primary && device->primary->alive)
		TRY_LOCKED(context_close(device->primary));
	pools_forget(device, &gone);
	graph_memory_forget(device, &graphs_gone);
	driver_unlock();
	chunks_give_back(gone);
	graph_blocks_give_back(graphs_gone);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *is_active)
{
	struct device *device;

	TRY(driver_enter());
	TRY_LOCKED(flags && is_active ? device_get(ordinal, &device) : CUDA_ERROR_INVALID_VALUE);
	*flags = 0;
	*is_active = device->primary && device->primary->alive;
	return driver_leave(CUDA_SUCCESS);
}
