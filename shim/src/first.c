/* See first.h. */
#include "first.h"

#include <stdint.h>

#include "homes.h"
#include "hooks.h"
#include "local_memory.h"
#include "seen.h"

enum { FUNCTION_MAX_THREADS = 0, CAPTURE_MODE_RELAXED = 2, STREAM_PER_THREAD = 2 };

#define UNKNOWN_LOCAL_BYTES (INT64_C(512) << 20)

enum state { STATE_UNKNOWN, STATE_ABSENT, STATE_LOADED };

static bool some_are_behind; /* functions that a graph may be the first to load */

CUstream vgpu_own_stream(enum vgpu_function real, enum vgpu_function twin, CUstream stream)
{
	return real == twin && !stream ? (CUstream)STREAM_PER_THREAD : stream;
}

/* From CUDA 12.4 on drivers tell. */
static enum state state_of(CUfunction function)
{
	int loaded = 0;

	if (real_cuFuncIsLoaded(&loaded, function) != CUDA_SUCCESS)
		return STATE_UNKNOWN;
	return loaded ? STATE_LOADED : STATE_ABSENT;
}

bool vgpu_needs_no_loading(CUfunction function)
{
	return vgpu_seen(function) || state_of(function) == STATE_LOADED;
}

/* Older drivers have no call for it, but load what they are asked about. Must not end a capture. */
static CUresult bring(CUfunction function, struct vgpu_reservation *reservation)
{
	int mode = CAPTURE_MODE_RELAXED, threads;
	bool exchanged = real_cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
	CUresult result;

	VGPU_CALL_RESERVED(result, reservation, real_cuFuncLoad(function));
	if (result == CUDA_ERROR_NOT_FOUND)
		result = real_cuFuncGetAttribute(&threads, FUNCTION_MAX_THREADS, function);
	if (exchanged)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}

/* A kernel's own function in the current context; to ask for it may load it. */
static CUresult resolve(CUfunction *function, bool *waited)
{
	CUkernel kernel = (CUkernel)(void *)*function;
	struct vgpu_load load;
	CUresult result;

	if (!vgpu_is_kernel(*function))
		return CUDA_SUCCESS;
	result = vgpu_load_begin(&load, &vgpu_code_needs);
	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
	*waited = load.turn.fd < 0;
	result = real_cuKernelGetFunction(function, kernel);
	vgpu_load_end(&load);
	return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

/* All that a call loads waits in vain for a turn once. */
static CUresult load_ahead(CUfunction *function, bool *waited)
{
	struct vgpu_needs needs = vgpu_code_needs;
	CUresult result = resolve(function, waited);
	struct vgpu_load load;
	enum state state;

	if (result != CUDA_SUCCESS)
		return result;
	state = state_of(*function);
	if (state == STATE_LOADED)
		return CUDA_SUCCESS;
	if (state == STATE_ABSENT)
		needs.takes = VGPU_TAKES_SURELY;
	needs.waited = *waited;
	result = vgpu_load_begin(&load, &needs);
	if (result != CUDA_SUCCESS)
		return result;
	*waited = load.turn.fd < 0;
	result = bring(*function, &load.reservation);
	vgpu_load_end(&load);
	if (state_of(*function) != STATE_LOADED)
		__atomic_store_n(&some_are_behind, true, __ATOMIC_RELAXED);
	return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

CUresult vgpu_load_ahead(CUfunction *function)
{
	bool waited = false;

	return load_ahead(function, &waited);
}

bool vgpu_all_are_ahead(void)
{
	return !__atomic_load_n(&some_are_behind, __ATOMIC_RELAXED);
}

/* A kernel has code of its own in each context; a function is of one. */
static CUfunction key_of(CUfunction function)
{
	struct vgpu_place place = {VGPU_CARD_UNMANAGED, 0};

	if (!vgpu_is_kernel(function) || !vgpu_several_contexts())
		return function;
	(void)vgpu_place_current(&place);
	return vgpu_seen_key(function, place.context);
}

bool vgpu_captures(CUstream stream)
{
	int status = 0;

	return stream && real_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status;
}

static struct vgpu_needs needs_of(const struct vgpu_local *local, CUfunction function)
{
	struct vgpu_needs needs = vgpu_code_needs;

	needs.known_bytes = local->growth_bytes;
	needs.most_bytes += local->known ? local->whole_bytes : UNKNOWN_LOCAL_BYTES;
	if (!local->growth_bytes && local->known && state_of(function) == STATE_LOADED)
		needs.takes = VGPU_TAKES_NO_REFUSAL;
	return needs;
}

/* In the context that its code belongs to. */
static CUresult begin_here(struct vgpu_first *first, CUfunction function)
{
	struct vgpu_local local;
	struct vgpu_needs needs;
	bool waited = false;
	CUresult result = load_ahead(&function, &waited);

	if (result != CUDA_SUCCESS)
		return result;
	local = vgpu_local_of(function);
	first->local_bytes = local.thread_bytes;
	if (!first->runs) {
		vgpu_local_in_graph(local.thread_bytes);
		return CUDA_SUCCESS;
	}
	needs = needs_of(&local, function);
	needs.waited = waited;
	return vgpu_load_begin_in(&first->load, &needs, first->home);
}

/* The stream is asked before, where it is launched: a thread's own is another in each context. */
static CUresult begin_at_home(struct vgpu_first *first, CUfunction function, CUstream stream)
{
	struct vgpu_visit visit;
	CUresult result;

	first->runs = !vgpu_captures(stream);
	first->home = vgpu_home_of_function(function);
	visit = vgpu_visit_context(first->home);
	result = begin_here(first, function);
	vgpu_visit_end(visit);
	return result;
}

CUresult vgpu_first_begin(struct vgpu_first *first, CUfunction function, CUstream stream)
{
	const struct vgpu_place nowhere = {VGPU_CARD_UNMANAGED, 0};
	CUresult result;

	*first = (struct vgpu_first){
	    .load = {.window.place = nowhere, .reservation.place = nowhere, .turn = VGPU_NO_TURN}};
	if (!function)
		return CUDA_SUCCESS;
	if (vgpu_is_kernel(function))
		first->visit = vgpu_visit_stream(stream);
	first->key = key_of(function);
	result = vgpu_seen(first->key) ? CUDA_SUCCESS : begin_at_home(first, function, stream);
	if (result != CUDA_SUCCESS)
		vgpu_visit_end(first->visit);
	return result;
}

CUresult vgpu_first_end(struct vgpu_first *first, CUresult result)
{
	if (first->runs) {
		vgpu_load_end(&first->load);
		if (result == CUDA_SUCCESS) {
			struct vgpu_visit visit = vgpu_visit_context(first->home);
			vgpu_local_launched(first->local_bytes);
			vgpu_visit_end(visit);
			vgpu_see(first->key);
		}
	}
	vgpu_visit_end(first->visit);
	return result;
}
