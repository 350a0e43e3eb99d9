/* The exported pairs of CUDA_STREAM_HOOK: each records which twin was called and calls their common
 * function. */
#include "loader/hooks.h"

#define HOOK(symbol, library, params, args)
#define CUDA_STREAM_HOOK(symbol, base, first, last, suffix, twin_first, params, args)              \
	CUresult symbol params                                                                     \
	{                                                                                          \
		return on_##symbol(VGPU_ID_##symbol, VGPU_BARE args);                              \
	}                                                                                          \
	CUresult symbol##suffix params                                                             \
	{                                                                                          \
		return on_##symbol(VGPU_ID_##symbol##suffix, VGPU_BARE args);                      \
	}
#include "loader/hooks.def"
