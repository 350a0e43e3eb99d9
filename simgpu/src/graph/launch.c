/*
 * Launches: the GPU is busy for a while, and nothing is computed.
 *
 * A launch is an item of its context's channel, and the call returns at once, unless the channel is
 * full: then it waits for room.
 */
#include "graph/graph.h"
#include "module/module.h"

#include <string.h>

#define BLOCK_THREADS_MAX  1024
#define CLUSTER_BLOCKS_MAX 8 /* more only by an attribute of the function */

/* An hour: no kernel takes longer. */
#define DURATION_MAX_NS 3600000000000u

enum { DEVICE_CLUSTER_LAUNCH = 120 };

/* Keys of `extra`. */
#define EXTRA_END	   ((void *)0)
#define EXTRA_BUFFER	   ((void *)1)
#define EXTRA_BUFFER_BYTES ((void *)2)

struct shape {
	unsigned int grid[3], block[3], shared_bytes;
	bool cooperative;
	unsigned int cluster[3]; /* blocks; zeros: none was requested */
};

/* One launch: a node of a graph has its duration, another launch its parameters. */
struct launch {
	CUfunction function;
	CUstream stream;
	void **parameters, **extra;
	const uint64_t *duration_ns;
};

/* All blocks of a cooperative launch run at once, so they must fit on the GPU together. */
static bool blocks_fit(const struct shape *shape, const struct device *device, int threads)
{
	uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
	uint64_t resident = (uint64_t)resident_blocks(device, threads, shape->shared_bytes);

	return blocks <= resident * device->gpu->multiprocessors;
}

/* Clusters cover the grid exactly. */
static CUresult check_cluster(const struct shape *shape, const struct device *device)
{
	const unsigned int *cluster = shape->cluster;
	uint64_t blocks = 1;
	int supported = 0;

	if (!cluster[0] && !cluster[1] && !cluster[2])
		return CUDA_SUCCESS;
	for (int i = 0; i < 3; i++) {
		if (!cluster[i])
			return CUDA_ERROR_INVALID_VALUE;
		blocks *= cluster[i];
		if (shape->grid[i] % cluster[i] || blocks > CLUSTER_BLOCKS_MAX)
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	}
	device_attribute(device, DEVICE_CLUSTER_LAUNCH, &supported);
	return blocks > 1 && !supported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult check(const struct shape *shape, const struct launch *given,
		      const struct function *function, const struct device *device)
{
	uint64_t threads = 1;
	int most;

	for (int i = 0; i < 6; i++) {
		unsigned int size = i < 3 ? shape->grid[i] : shape->block[i - 3];

		if (!size || size > (unsigned int)device->launch_most[i])
			return CUDA_ERROR_INVALID_VALUE;
		threads *= i < 3 ? 1 : size;
	}
	if (threads > BLOCK_THREADS_MAX || (given->parameters && given->extra))
		return CUDA_ERROR_INVALID_VALUE;
	if (function->entry->parameter_count && !given->parameters && !given->extra &&
	    !given->duration_ns)
		return CUDA_ERROR_INVALID_VALUE;
	if (function_attribute(function, device, 8, &most) != CUDA_SUCCESS ||
	    shape->shared_bytes > (unsigned int)most)
		return CUDA_ERROR_INVALID_VALUE;
	if (shape->cooperative && !blocks_fit(shape, device, (int)threads))
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return check_cluster(shape, device);
}

/* The bytes of all parameters, where `extra` has them. */
static const char *parameter_buffer(void **extra, size_t at_least)
{
	const char *buffer = NULL;
	size_t bytes = 0;

	for (; extra && extra[0] != EXTRA_END; extra += 2) {
		if (extra[0] == EXTRA_BUFFER)
			buffer = extra[1];
		else if (extra[0] == EXTRA_BUFFER_BYTES)
			bytes = *(const size_t *)extra[1];
		else
			return NULL;
	}
	return bytes >= at_least ? buffer : NULL;
}

/* A kernel whose parameter has the duration takes that long; without the parameter, as any. */
static uint64_t duration_ns(const struct function *function, void **parameters, void **extra)
{
	const struct ptx_entry *entry = function->entry;
	const struct ptx_parameter *row;
	uint64_t value_ns = entry->duration_ns;
	const char *buffer;

	if (entry->duration_argument >= entry->parameter_count)
		return value_ns;
	row = &entry->parameters[entry->duration_argument];
	buffer = parameter_buffer(extra, row->offset + sizeof(value_ns));
	if (row->bytes == sizeof(value_ns) && parameters)
		memcpy(&value_ns, parameters[entry->duration_argument], sizeof(value_ns));
	else if (row->bytes == sizeof(value_ns) && buffer)
		memcpy(&value_ns, buffer + row->offset, sizeof(value_ns));
	return value_ns;
}

uint64_t kernel_duration_ns(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
	return duration_ns(function_get(kernel->func ? (void *)kernel->func : (void *)kernel->kern),
			   kernel->kernelParams, kernel->extra);
}

/* With the lock: the stream, and a place for the function. */
static CUresult prepare(const struct shape *shape, const struct launch *given,
			struct function **function, struct stream **stream)
{
	struct context *context;
	CUresult result = context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	*function = function_get(given->function);
	if (!*function)
		return CUDA_ERROR_INVALID_HANDLE;
	if ((*function)->module && (*function)->module->context != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	result = stream_get(given->stream, stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!(*function)->module)
		context = (*stream)->context;
	if ((*stream)->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = image_fits((*function)->ptx, context->device);
	if (result == CUDA_SUCCESS)
		result = check(shape, given, *function, context->device);
	if (result == CUDA_SUCCESS && !(*stream)->capture)
		result = function_grow_local(*function, context);
	return result;
}

static CUresult capture(const struct shape *shape, const struct launch *given,
			const struct function *function, struct stream *stream)
{
	struct node *node = capture_add(stream, CU_GRAPH_NODE_TYPE_KERNEL);

	if (!node)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	node->work.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = given->function,
						      .gridDimX = shape->grid[0],
						      .gridDimY = shape->grid[1],
						      .gridDimZ = shape->grid[2],
						      .blockDimX = shape->block[0],
						      .blockDimY = shape->block[1],
						      .blockDimZ = shape->block[2],
						      .sharedMemBytes = shape->shared_bytes};
	node->work.kernel_ns = duration_ns(function, given->parameters, given->extra);
	return CUDA_SUCCESS;
}

/* With the lock. */
static CUresult occupy(const struct launch *given, const struct function *function,
		       struct stream *stream, struct mark *room)
{
	uint64_t takes_ns = given->duration_ns
				? *given->duration_ns
				: duration_ns(function, given->parameters, given->extra);

	if (takes_ns == PTX_DURATION_DEFAULT)
		takes_ns = sim_link_shared(stream->context->device->link)->board.launch_default_ns;
	if (takes_ns > DURATION_MAX_NS)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_occupy(stream, takes_ns, room);
}

static CUresult launch(const struct shape *shape, const struct launch *given)
{
	struct function *function;
	struct stream *stream;
	struct mark room;
	CUresult result;

	while ((result = driver_enter()) == CUDA_SUCCESS) {
		result = prepare(shape, given, &function, &stream);
		if (result == CUDA_SUCCESS)
			result = stream->capture ? capture(shape, given, function, stream)
						 : occupy(given, function, stream, &room);
		driver_unlock();
		if (result != CUDA_ERROR_NOT_READY)
			break;
		mark_wait(&room);
	}
	return result;
}

CUresult kernel_launch(const CUDA_KERNEL_NODE_PARAMS *kernel, uint64_t takes_ns, CUstream stream)
{
	struct shape shape = {{kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ},
			      {kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ},
			      kernel->sharedMemBytes,
			      false,
			      {0}};
	struct launch given = {
	    .function = kernel->func, .stream = stream, .duration_ns = &takes_ns};

	if (!given.function && cuKernelGetFunction(&given.function, kernel->kern) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_HANDLE;
	return launch(&shape, &given);
}

CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **parameters, void **extra)
{
	struct shape shape = {
	    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, false, {0}};

	return launch(&shape, &(struct launch){handle, stream, parameters, extra, NULL});
}

CUresult cuLaunchCooperativeKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
				   void **parameters)
{
	struct shape shape = {
	    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true, {0}};

	return launch(&shape, &(struct launch){handle, stream, parameters, NULL, NULL});
}

/*
 * Hints on where and in which order a kernel may run are accepted, and change nothing: the GPU has
 * one order. So are clusters, on GPUs that have them. Events have visible effects, and are refused.
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
		shape->cluster[0] = attribute->value.clusterDim.x;
		shape->cluster[1] = attribute->value.clusterDim.y;
		shape->cluster[2] = attribute->value.clusterDim.z;
		return CUDA_SUCCESS;
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
			       false,
			       {0}};
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < config->numAttrs; i++)
		result = read_attribute(&config->attrs[i], &shape);
	if (result != CUDA_SUCCESS)
		return result;
	return launch(&shape, &(struct launch){handle, config->hStream, parameters, extra, NULL});
}
