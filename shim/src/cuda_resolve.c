/*
 * cuGetProcAddress: the driver answers, with the caller's version and flags; where its answer is
 * the function of a hook, the caller gets the wrapper.
 *
 * Which pointers those are is asked of the driver itself: its exported symbols, and what its own
 * cuGetProcAddress gives for each hook's base name, at the first and last version and under every
 * flag at which hooks.def says that it means this function. A pointer that is not among them
 * (another version, another stream flavour, a name we do not know) passes through.
 */
#include <stdbool.h>
#include <stddef.h>

#include "hooks.h"
#include "resolve.h"

enum {
	LATEST = 13030, /* the newest API whose names were compared with hooks.def */
	LEGACY_STREAM = 1 << CU_GET_PROC_ADDRESS_DEFAULT | 1 << CU_GET_PROC_ADDRESS_LEGACY_STREAM,
	PER_THREAD_STREAM = 1 << CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
	ANY_STREAM = LEGACY_STREAM | PER_THREAD_STREAM,
	FLAG_COUNT = 3,
};

static const struct meaning {
	enum vgpu_function hook;
	const char *base;
	int first, last;
	unsigned int flags; /* bit mask */
} MEANINGS[] = {
#define CUDA_HOOK(symbol, base, first, last, flags, params, args)                                  \
	{VGPU_ID_##symbol, base, first, last, flags},
#define CUDA_STREAM_HOOK(symbol, base, first, last, suffix, twin_first, params, args)              \
	{VGPU_ID_##symbol, base, first, last, LEGACY_STREAM},                                      \
	    {VGPU_ID_##symbol##suffix, base, twin_first, last, PER_THREAD_STREAM},
#define NVML_HOOK(symbol, params, args)
#include "hooks.def"
};

enum {
	MEANING_COUNT = sizeof(MEANINGS) / sizeof(*MEANINGS),
	MAP_CAPACITY = MEANING_COUNT * (1 + 2 * FLAG_COUNT),
};

/* Filled once per loaded driver; every thread that fills it writes the same. */
static void *map_real[MAP_CAPACITY];
static void *map_wrapper[MAP_CAPACITY];
static uintptr_t map_base; /* load bias of the driver that it was filled from */

/* Some drivers call their own exports, which are ours now: while we ask, they get raw answers. */
static __thread bool asking;

static void *ask(const struct meaning *meaning, int version, uint64_t flags)
{
	void *pointer = NULL;
	int status;
	CUresult result =
	    real_cuGetProcAddress_v2(meaning->base, &pointer, version, flags, &status);

	if (result == CUDA_ERROR_NOT_FOUND && !pointer)
		result = real_cuGetProcAddress(meaning->base, &pointer, version, flags);
	return result == CUDA_SUCCESS ? pointer : NULL;
}

static void *wrapper_of(const void *real)
{
	for (int i = 0; i < MAP_CAPACITY; i++)
		if (__atomic_load_n(&map_real[i], __ATOMIC_RELAXED) == real)
			return __atomic_load_n(&map_wrapper[i], __ATOMIC_RELAXED);
	return NULL;
}

static void map_put(int at, void *real, enum vgpu_function hook)
{
	__atomic_store_n(&map_wrapper[at], vgpu_wrapper(hook), __ATOMIC_RELAXED);
	__atomic_store_n(&map_real[at], real, __ATOMIC_RELAXED);
}

static void fill_map(void)
{
	int at = 0;

	for (const struct meaning *m = MEANINGS; m < MEANINGS + MEANING_COUNT; m++)
		map_put(at++, vgpu_real_pointer(m->hook), m->hook);
	for (const struct meaning *m = MEANINGS; m < MEANINGS + MEANING_COUNT; m++) {
		for (uint64_t flag = 0; flag < FLAG_COUNT; flag++) {
			bool means_it = m->flags & 1u << flag;
			map_put(at++, means_it ? ask(m, m->first, flag) : NULL, m->hook);
			map_put(at++, means_it ? ask(m, m->last, flag) : NULL, m->hook);
		}
	}
}

static void substitute(void **pfn)
{
	uintptr_t base;
	void *wrapper;

	if (!pfn || !*pfn || asking)
		return;
	base = vgpu_refresh(VGPU_LIBRARY_cuda);
	if (__atomic_load_n(&map_base, __ATOMIC_ACQUIRE) != base) {
		asking = true;
		fill_map();
		asking = false;
		__atomic_store_n(&map_base, base, __ATOMIC_RELEASE);
	}
	wrapper = wrapper_of(*pfn);
	if (wrapper)
		*pfn = wrapper;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags)
{
	CUresult result = real_cuGetProcAddress(symbol, pfn, cuda_version, flags);

	if (result == CUDA_SUCCESS)
		substitute(pfn);
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
			     int *symbol_status)
{
	CUresult result = real_cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, symbol_status);

	if (result == CUDA_SUCCESS)
		substitute(pfn);
	return result;
}
