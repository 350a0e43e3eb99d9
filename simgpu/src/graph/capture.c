/*
 * Stream capture: what is submitted to a stream is recorded in a graph instead of being executed.
 *
 * A capture forbids what it cannot record. Calls such as cuMemAlloc and cuEventQuery are forbidden
 * to threads that have not opted out. A query of a capturing stream, or a wait for it, is forbidden
 * to all threads. A forbidden call fails and invalidates the capture. Kernels, copies, fills and
 * stream-ordered memory are captured. An event extends a capture to a stream that waits for it.
 * Whether that stream rejoins is not checked.
 */
#include "graph/graph.h"

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

struct capture {
	struct object object;
	struct graph *graph;
	struct stream *origin;
	const void *thread;
	int mode;
	bool invalid;
};

static __thread int thread_mode;
static __thread char this_thread;

int capture_mode_exchange(int mode)
{
	int before = thread_mode;

	thread_mode = mode;
	return before;
}

static bool forbids(const struct capture *capture)
{
	if (thread_mode == CU_STREAM_CAPTURE_RELAXED || capture->mode == CU_STREAM_CAPTURE_RELAXED)
		return false;
	return capture->thread == &this_thread || (thread_mode == CU_STREAM_CAPTURE_GLOBAL &&
						   capture->mode == CU_STREAM_CAPTURE_GLOBAL);
}

CUresult capture_allows(void)
{
	CUresult result = CUDA_SUCCESS;
	struct capture *capture;
	uint32_t at = 0;

	while ((capture = object_next(OBJECT_CAPTURE, &at))) {
		if (!forbids(capture))
			continue;
		capture->invalid = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

CUresult capture_allows_on(const struct stream *stream)
{
	if (!stream->capture)
		return CUDA_SUCCESS;
	stream->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

struct graph *capture_graph(const struct stream *stream)
{
	return stream->capture->invalid ? NULL : stream->capture->graph;
}

struct node *capture_add(struct stream *stream, int type)
{
	return stream->capture->invalid ? NULL : graph_add(stream->capture->graph, type);
}

static void detach_streams(const struct capture *capture)
{
	struct stream *stream;
	uint32_t at = 0;

	while ((stream = object_next(OBJECT_STREAM, &at)))
		if (stream->capture == capture)
			stream->capture = NULL;
}

static void end(struct capture *capture, bool keep_graph)
{
	detach_streams(capture);
	if (!keep_graph)
		graph_free(capture->graph);
	object_free(capture);
}

void capture_forget(struct context *context)
{
	struct capture *capture;
	uint32_t at = 0;

	while ((capture = object_next(OBJECT_CAPTURE, &at)))
		if (capture->origin->context == context)
			end(capture, false);
}

/* The stream is destroyed, which ends a capture that began on it. */
void capture_end_on(struct stream *stream)
{
	if (stream->capture && stream->capture->origin == stream)
		end(stream->capture, false);
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
	struct capture *capture;
	struct stream *stream;

	if (mode < CU_STREAM_CAPTURE_GLOBAL || mode > CU_STREAM_CAPTURE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(stream_enter(handle, &stream));
	if (stream == &stream->context->legacy)
		return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (stream->capture)
		return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
	capture = object_new(OBJECT_CAPTURE, sizeof(*capture));
	capture->graph = graph_new();
	capture->origin = stream;
	capture->thread = &this_thread;
	capture->mode = mode;
	stream->capture = capture;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_GLOBAL);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	struct capture *capture;
	struct stream *stream;
	CUresult result;

	TRY(stream_enter(handle, &stream));
	capture = stream->capture;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!capture)
		return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
	if (capture->origin != stream)
		return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_RELAXED && capture->thread != &this_thread)
		return driver_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	*out = result == CUDA_SUCCESS ? object_handle(capture->graph) : NULL;
	end(capture, result == CUDA_SUCCESS);
	return driver_leave(result);
}

static int status_of(const struct stream *stream)
{
	return !stream->capture		  ? STATUS_NONE
	       : stream->capture->invalid ? STATUS_INVALIDATED
					  : STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	struct stream *stream;

	TRY(stream_enter(handle, &stream));
	if (!status)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*status = status_of(stream);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **after, const void **edges, size_t *count)
{
	static CUgraphNode last; /* valid until the next call, as documented */
	struct capture *capture;
	struct stream *stream;

	TRY(stream_enter(handle, &stream));
	if (!status)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*status = status_of(stream);
	capture = stream->capture;
	if (*status != STATUS_ACTIVE)
		return driver_leave(CUDA_SUCCESS);
	if (id)
		*id = capture->object.serial;
	if (graph)
		*graph = object_handle(capture->graph);
	if (capture->graph->count)
		last = object_handle(capture->graph->nodes[capture->graph->count - 1]);
	if (after)
		*after = capture->graph->count ? &last : NULL;
	if (edges)
		*edges = NULL;
	if (count)
		*count = capture->graph->count > 0;
	return driver_leave(CUDA_SUCCESS);
}
