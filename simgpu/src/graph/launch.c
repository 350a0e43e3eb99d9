/*
 * Launches: the GPU is busy for a while, and nothing is computed.
 *
 * The daemon queues the work and returns when it will be done; the call returns at once. A launch
 * behind another GPU's event starts no earlier than that.
 */
#include "graph/graph.h"
#include "module/module.h"

#define BLOCK_THREADS_MAX 1024

struct shape {
	unsigned int grid[3], block[3], shared_bytes;
	bool cooperative;
};

/* All blocks of a cooperative launch run at once, so they must fit on the GPU together. */
static bool blocks_fit(const struct shape *shape, const struct device *device, int threads)
{
	uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
	uint64_t resident = (uint64_t)resident_blocks(device, threads, shape->shared_bytes);

	return blocks <= resident * device->gpu->multiprocessors;
}

static CUresult check(const struct shape *shape, const struct function *function,
		      const struct device *device, void **parameters, void **extra)
{
	static const int attributes[] = {5, 6, 7, 2, 3, 4}; /* largest grid and block */
	uint64_t threads = 1;
	int most;

	for (int i = 0; i < 6; i++) {
		unsigned int size = i < 3 ? shape->grid[i] : shape->block[i - 3];

		if (device_attribute(device, attributes[i], &most) != CUDA_SUCCESS || !size ||
		    size > (unsigned int)most)
			return CUDA_ERROR_INVALID_VALUE;
		threads *= i < 3 ? 1 : size;
	}
	if (threads > BLOCK_THREADS_MAX || (parameters && extra))
		return CUDA_ERROR_INVALID_VALUE;
	if (function->entry->parameter_count && !parameters && !extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (function_attribute(function, device, 8, &most) != CUDA_SUCCESS ||
	    shape->shared_bytes > (unsigned int)most)
		return CUDA_ERROR_INVALID_VALUE;
	if (shape->cooperative && !blocks_fit(shape, device, (int)threads))
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return CUDA_SUCCESS;
}

/* With the lock: the daemon's request, and when the stream is free. */
static CUresult prepare(const struct shape *shape, CUfunction handle, CUstream stream_handle,
			void **parameters, void **extra, struct sim_launch *request,
			struct stream **stream)
{
	struct function *function = function_get(handle);
	struct context *context;
	CUresult result = context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (function->module && function->module->context != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = stream_get(stream_handle, stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!function->module)
		context = (*stream)->context;
	if ((*stream)->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = image_fits(function->ptx, context->device);
	if (result == CUDA_SUCCESS)
		result = check(shape, function, context->device, parameters, extra);
	if (result == CUDA_SUCCESS && !(*stream)->capture)
		result = function_make_room(function, context);
	if (result != CUDA_SUCCESS)
		return result;
	*request = (struct sim_launch){.context = context->id,
				       .stream = (*stream)->object.serial,
				       .duration_ns = function->entry->duration_ns};
	return CUDA_SUCCESS;
}

static CUresult capture(const struct shape *shape, CUfunction handle, struct stream *stream)
{
	struct node *node = capture_add(stream, CU_GRAPH_NODE_TYPE_KERNEL);

	if (!node)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	node->work.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = handle,
						      .gridDimX = shape->grid[0],
						      .gridDimY = shape->grid[1],
						      .gridDimZ = shape->grid[2],
						      .blockDimX = shape->block[0],
						      .blockDimY = shape->block[1],
						      .blockDimZ = shape->block[2],
						      .sharedMemBytes = shape->shared_bytes};
	return CUDA_SUCCESS;
}

static CUresult launch(const struct shape *shape, CUfunction handle, CUstream stream_handle,
		       void **parameters, void **extra)
{
	struct sim_instant done;
	struct sim_launch request;
	struct stream *stream;
	struct sim_link *link;
	uint64_t ready_ns, earliest_ns;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = prepare(shape, handle, stream_handle, parameters, extra, &request, &stream);
	if (result == CUDA_SUCCESS && stream->capture)
		result = capture(shape, handle, stream);
	if (result != CUDA_SUCCESS || stream->capture)
		return driver_leave(result);
	link = stream->context->device->link;
	ready_ns = stream_ready_ns(stream);
	driver_unlock();
	result = driver_result(
	    sim_call(link, SIM_LAUNCH, &request, sizeof(request), &done, sizeof(done), NULL));
	if (result != CUDA_SUCCESS)
		return result;
	driver_lock();
	/* The daemon alone has the default duration, which is too short to matter here. */
	earliest_ns =
	    request.duration_ns == SIM_DURATION_DEFAULT ? ready_ns : ready_ns + request.duration_ns;
	if (stream_get(stream_handle, &stream) == CUDA_SUCCESS)
		stream_submit(stream,
			      done.monotonic_ns > earliest_ns ? done.monotonic_ns : earliest_ns);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **parameters, void **extra)
{
	struct shape shape = {
	    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, false};

	return launch(&shape, handle, stream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
				   void **parameters)
{
	struct shape shape = {
	    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true};

	return launch(&shape, handle, stream, parameters, NULL);
}

/*
 * Hints on where and in which order a kernel may run are accepted, and change nothing: the GPU has
 * one order. Those with visible effects, clusters and events, are refused.
 */
static CUresult read_attribute(const CUlaunchAttribute *attribute, struct shape *shape)
{
	switch (attribute->id) {
	case CU_LAUNCH_ATTRIBUTE_IGNORE:
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		shape->cooperative = attribute->value.cooperative != 0;
		return CUDA_SUCCESS;
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		if (attribute->value.clusterDim.x == 1 && attribute->value.clusterDim.y == 1 &&
		    attribute->value.clusterDim.z == 1)
			return CUDA_SUCCESS;
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **parameters,
			  void **extra)
{
	struct shape shape;
	CUresult result = CUDA_SUCCESS;

	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	shape = (struct shape){{config->gridDimX, config->gridDimY, config->gridDimZ},
			       {config->blockDimX, config->blockDimY, config->blockDimZ},
			       config->sharedMemBytes,
			       false};
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < config->numAttrs; i++)
		result = read_attribute(&config->attrs[i], &shape);
	if (result != CUDA_SUCCESS)
		return result;
	return launch(&shape, handle, config->hStream, parameters, extra);
}
