/* Submits work to a stream, or records it in the graph that captures the stream. */
#include "graph/graph.h"
#include "module/module.h"

/* The longest accepted duration is an hour. */
#define DURATION_MAX_NS 3600000000000u

/* Loads the function's code into the stream's context. The caller holds the lock. */
static CUresult load(const struct work *work, const struct stream *stream)
{
	struct function *function = function_get(work->function);

	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (function->module && function->module->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	return function_load(function, stream->context);
}

/* Submits the work to the stream. The caller holds the lock. */
static CUresult occupy(const struct work *work, struct stream *stream, struct mark *room)
{
	uint64_t duration_ns = work->duration_ns;

	TRY(work->function ? load(work, stream) : CUDA_SUCCESS);
	if (duration_ns == CODE_UNSTATED)
		duration_ns =
		    sim_link_shared(stream->context->device->link)->board.launch_default_ns;
	if (duration_ns > DURATION_MAX_NS)
		return CUDA_ERROR_INVALID_VALUE;
	return work->function || duration_ns ? stream_occupy(stream, duration_ns, room)
					     : CUDA_SUCCESS;
}

static CUresult record(const struct work *work, int node_type, struct stream *stream)
{
	struct node *node = capture_add(stream, node_type);

	if (!node)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	node->work = *work;
	return CUDA_SUCCESS;
}

CUresult work_submit(const struct work *work, int node_type, CUstream handle)
{
	struct stream *stream;
	struct mark room;
	CUresult result;

	while ((result = stream_enter(handle, &stream)) == CUDA_SUCCESS) {
		result =
		    stream->capture ? record(work, node_type, stream) : occupy(work, stream, &room);
		driver_unlock();
		if (result != CUDA_ERROR_NOT_READY)
			break;
		mark_wait(&room);
	}
	return result;
}
