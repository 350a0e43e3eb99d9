/* See local_memory.h. */
#include "local_memory.h"

#include "hooks.h"
#include "lock.h"
#include "place.h"

enum {
	FUNCTION_LOCAL_BYTES = 3,
	LIMIT_STACK = 0,
	CONTEXTS = 64,
	ATTRIBUTE_MULTIPROCESSORS = 16,
	ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
};

#define STACK_DEFAULT_BYTES 1024 /* room for so much comes with a context */

static struct {
	struct vgpu_lock lock;
	struct room {
		uint32_t context;
		int launched_bytes, graph_bytes;
	} rooms[CONTEXTS];
} table;

uint64_t vgpu_resident_threads(void)
{
	int multiprocessors = 0, threads = 0;
	CUdevice device;

	if (real_cuCtxGetDevice(&device) != CUDA_SUCCESS ||
	    real_cuDeviceGetAttribute(&multiprocessors, ATTRIBUTE_MULTIPROCESSORS, device) !=
		CUDA_SUCCESS ||
	    real_cuDeviceGetAttribute(&threads, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, device) !=
		CUDA_SUCCESS)
		return 0;
	return (uint64_t)multiprocessors * (uint64_t)threads;
}

static struct room *room_of(uint32_t context)
{
	struct room *room = &table.rooms[context % CONTEXTS];

	if (room->context != context)
		*room = (struct room){.context = context};
	return room;
}

static struct room read_room(void)
{
	struct room room = {0};
	struct vgpu_place place;

	if (vgpu_place_current(&place) != CUDA_SUCCESS || !place.context)
		return room;
	if (!vgpu_lock(&table.lock))
		return room;
	room = *room_of(place.context);
	vgpu_unlock(&table.lock);
	return room;
}

static void widen(int launched_bytes, int graph_bytes)
{
	struct vgpu_place place;
	struct room *room;

	if (vgpu_place_current(&place) != CUDA_SUCCESS || !place.context)
		return;
	if (!vgpu_lock(&table.lock))
		return;
	room = room_of(place.context);
	if (room->launched_bytes < launched_bytes)
		room->launched_bytes = launched_bytes;
	if (room->graph_bytes < graph_bytes)
		room->graph_bytes = graph_bytes;
	vgpu_unlock(&table.lock);
}

void vgpu_local_launched(int thread_bytes)
{
	widen(thread_bytes, 0);
}

void vgpu_local_in_graph(int thread_bytes)
{
	widen(0, thread_bytes);
}

/* What was made room for already: by launches, or by a stack limit that the program raised. */
static int64_t present_bytes(void)
{
	int64_t launched_bytes = read_room().launched_bytes;
	size_t stack_bytes = 0;

	if (real_cuCtxGetLimit(&stack_bytes, LIMIT_STACK) != CUDA_SUCCESS ||
	    stack_bytes <= STACK_DEFAULT_BYTES || stack_bytes > INT32_MAX)
		return launched_bytes;
	return launched_bytes > (int64_t)stack_bytes ? launched_bytes : (int64_t)stack_bytes;
}

int64_t vgpu_local_of_graphs(void)
{
	int64_t bytes = read_room().graph_bytes;

	return bytes > STACK_DEFAULT_BYTES && bytes > present_bytes()
		   ? bytes * (int64_t)vgpu_resident_threads()
		   : 0;
}

struct vgpu_local vgpu_local_of(CUfunction function)
{
	struct vgpu_local local = {0};
	int64_t threads = (int64_t)vgpu_resident_threads(), present;

	local.known = threads &&
		      real_cuFuncGetAttribute(&local.thread_bytes, FUNCTION_LOCAL_BYTES,
					      function) == CUDA_SUCCESS &&
		      local.thread_bytes >= 0;
	if (!local.known) {
		local.thread_bytes = 0;
		return local;
	}
	local.whole_bytes = local.thread_bytes * threads;
	if (local.thread_bytes <= STACK_DEFAULT_BYTES)
		return local;
	present = present_bytes();
	if (local.thread_bytes > present)
		local.growth_bytes = (local.thread_bytes - present) * threads;
	return local;
}
