/* The exported functions of each pair of twins (hooks.def). Each calls the pair's common function
 * with the id of the twin that the program called. If launches are not checked, functions that
 * submit work call the driver directly. */
#include "loader/hooks.h"
#include "loader/launches_checked.h"

#define HOOK(symbol, library, params, args)
#define CUDA_TWINS(symbol, base, first, last, suffix, params, args)                                \
	CUresult symbol params                                                                     \
	{                                                                                          \
		return on_##symbol(VGPU_ID_##symbol, VGPU_BARE args);                              \
	}                                                                                          \
	CUresult symbol##suffix params                                                             \
	{                                                                                          \
		return on_##symbol(VGPU_ID_##symbol##suffix, VGPU_BARE args);                      \
	}
#define LAUNCH_TWIN(symbol, name, params, args)                                                    \
	CUresult name params                                                                       \
	{                                                                                          \
		CUresult(*real) params = (CUresult(*) params)__atomic_load_n(                      \
		    &vgpu_real[VGPU_ID_##name], __ATOMIC_RELAXED);                                 \
                                                                                                   \
		if (__builtin_expect(real && !vgpu_launches_are_checked(), 1))                     \
			return real args;                                                          \
		return on_##symbol(VGPU_ID_##name, VGPU_BARE args);                                \
	}
#define CUDA_WORK(symbol, base, first, last, suffix, params, args)                                 \
	LAUNCH_TWIN(symbol, symbol, params, args)                                                  \
	LAUNCH_TWIN(symbol, symbol##suffix, params, args)
#include "loader/hooks.def"
