/*
 * Wrapper of cuGetProcAddress. It calls the driver with the program's version and flags. If the
 * driver returns a function that has a hook, the program gets the hook's wrapper.
 *
 * If the driver exports the returned pointer under a hook's name, it is that hook's function.
 * Drivers may also return inner functions that they do not export. Then hooks.def tells which
 * symbol the name means for that version and default stream. In versions newer than hooks.def a
 * name may mean another function. So the driver is queried again with the newest version that
 * hooks.def knows, and the hook applies only if the pointer is the same.
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "loader/hooks.h"
#include "loader/names.h"
#include "loader/resolve.h"

enum {
	LATEST = 13050, /* the newest version that hooks.def knows */
	LEGACY_STREAM = 1 << CU_GET_PROC_ADDRESS_DEFAULT | 1 << CU_GET_PROC_ADDRESS_LEGACY_STREAM,
	PER_THREAD_STREAM = 1 << CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
	ANY_STREAM = LEGACY_STREAM | PER_THREAD_STREAM,
	BOTH_STREAMS =
	    CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
};

/* The first version of a _ptsz or _ptds symbol: per-thread default streams exist since CUDA 7. */
#define FIRST_OF_TWIN(first) ((first) < 7000 ? 7000 : (first))

static const struct meaning {
	enum vgpu_function hook;
	const char *base;
	int first, last;
	unsigned int flags; /* bit mask */
} MEANINGS[] = {
#define CUDA_HOOK(symbol, base, first, last, params, args)                                         \
	{VGPU_ID_##symbol, base, first, last, ANY_STREAM},
#define CUDA_TWINS(symbol, base, first, last, suffix, params, args)                                \
	{VGPU_ID_##symbol, base, first, last, LEGACY_STREAM},                                      \
	    {VGPU_ID_##symbol, base, first, FIRST_OF_TWIN(first) - 1, PER_THREAD_STREAM},          \
	    {VGPU_ID_##symbol##suffix, base, FIRST_OF_TWIN(first), last, PER_THREAD_STREAM},
#define NVML_HOOK(symbol, params, args)
#include "loader/hooks.def"
};

enum { MEANING_COUNT = sizeof(MEANINGS) / sizeof(*MEANINGS), BASE_SLOTS = 2048 };
_Static_assert(2 * MEANING_COUNT < BASE_SLOTS, "names.h");

static const char *base_of(int meaning)
{
	return MEANINGS[meaning].base;
}

/* The driver's newest API version. INT_MAX: the driver does not report it. */
static int driver_version(void)
{
	CUresult (*get_version)(int *version) = NULL;
	int version;

	if (real_cuGetProcAddress("cuDriverGetVersion", (void **)&get_version, 2020, 0) !=
		CUDA_SUCCESS ||
	    !get_version || get_version(&version) != CUDA_SUCCESS)
		return INT_MAX;
	return version;
}

static bool means(const struct meaning *meaning, int version, uint64_t flags, const void *found)
{
	void *known = NULL;
	int newest = driver_version(), last;

	/* The driver treats a version later than its own as its own. */
	if (version > newest)
		version = newest;
	last = meaning->last == LATEST ? version : meaning->last;
	if (flags == BOTH_STREAMS) /* both flags mean the per-thread default stream */
		flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	if (flags > BOTH_STREAMS || !(meaning->flags & 1u << flags) || version < meaning->first ||
	    version > last)
		return false;
	return version <= LATEST || (real_cuGetProcAddress_v2(meaning->base, &known, LATEST, flags,
							      NULL) == CUDA_SUCCESS &&
				     known == found);
}

static void *wrapper_of(const char *base, void *found, int version, uint64_t flags)
{
	static uint16_t slots[BASE_SLOTS];
	static struct vgpu_names bases = {base_of, MEANING_COUNT, BASE_SLOTS, slots, 0};
	uint32_t slot = vgpu_names_start(&bases, base);
	int meant = -1;

	for (int i; (i = vgpu_names_next(&bases, base, &slot)) >= 0;) {
		enum vgpu_function hook = MEANINGS[i].hook;
		if (!vgpu_refresh(VGPU_LIBRARY_cuda))
			return found;
		if (found == vgpu_wrapper(hook) || found == vgpu_real_pointer(hook))
			return vgpu_wrapper(hook);
		if (means(&MEANINGS[i], version, flags, found))
			meant = i;
	}
	return meant < 0 ? found : vgpu_wrapper(MEANINGS[meant].hook);
}

static CUresult substitute(CUresult result, const char *symbol, void **pfn, int version,
			   uint64_t flags)
{
	if (result == CUDA_SUCCESS && symbol && pfn && *pfn)
		*pfn = wrapper_of(symbol, *pfn, version, flags);
	return result;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags)
{
	CUresult result = real_cuGetProcAddress(symbol, pfn, cuda_version, flags);

	return substitute(result, symbol, pfn, cuda_version, flags);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
			     int *symbol_status)
{
	CUresult result = real_cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, symbol_status);

	return substitute(result, symbol, pfn, cuda_version, flags);
}
