/*
 * An id, a prototype and a typed caller for each function in hooks.def.
 *
 * Wrappers have the driver's own names. `real_NAME(...)` calls the driver, or returns its library's
 * "not found" code if the driver is not loaded or lacks the function. Two stream twins share the
 * wrapper `on_NAME(real, ...)`, where `real` is the id of the twin that the program called.
 * `as_NAME(real, ...)` calls the driver's function of that twin.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/cuda_abi.h"
#include "vgpu/nvml_abi.h"

enum vgpu_library { VGPU_LIBRARY_cuda, VGPU_LIBRARY_nvml, VGPU_LIBRARY_COUNT };

typedef CUresult vgpu_returns_cuda;
typedef nvmlReturn_t vgpu_returns_nvml;
enum {
	vgpu_absent_cuda = CUDA_ERROR_NOT_FOUND,
	vgpu_absent_nvml = NVML_ERROR_FUNCTION_NOT_FOUND,
};

/* Hooks come first, so that an id below VGPU_HOOK_COUNT has a wrapper. */
enum vgpu_function {
#define HOOK(symbol, library, params, args) VGPU_ID_##symbol,
#include "loader/hooks.def"
	VGPU_HOOK_COUNT,
	VGPU_LAST_HOOK = VGPU_HOOK_COUNT - 1,
#define REAL(symbol, library, params, args) VGPU_ID_##symbol,
#include "loader/hooks.def"
	VGPU_FUNCTION_COUNT
};

#define HOOK(symbol, library, params, args)                                                        \
	__attribute__((visibility("default"))) vgpu_returns_##library symbol params;
#include "loader/hooks.def"

#define VGPU_BARE(...) __VA_ARGS__

#define HOOK(symbol, library, params, args)
#define CUDA_TWINS(symbol, base, first, last, suffix, params, args)                                \
	CUresult on_##symbol(enum vgpu_function real, VGPU_BARE params);
#include "loader/hooks.def"

/* The driver's functions. NULL: not looked for yet, or missing. */
extern void *vgpu_real[VGPU_FUNCTION_COUNT];

/* Look again for a driver's function that is NULL in vgpu_real. */
void *vgpu_real_find(enum vgpu_function function);

static inline void *vgpu_real_pointer(enum vgpu_function function)
{
	void *real = __atomic_load_n(&vgpu_real[function], __ATOMIC_RELAXED);
	return real ? real : vgpu_real_find(function);
}

#define HOOK(symbol, library, params, args)                                                        \
	static inline vgpu_returns_##library real_##symbol params                                  \
	{                                                                                          \
		vgpu_returns_##library(*real) params =                                             \
		    (vgpu_returns_##library(*) params)vgpu_real_pointer(VGPU_ID_##symbol);         \
		return real ? real args : vgpu_absent_##library;                                   \
	}
#define REAL(symbol, library, params, args) HOOK(symbol, library, params, args)
#include "loader/hooks.def"

/* The stream that a call means. In a _ptsz or _ptds twin, 0 means the calling thread's default
 * stream. */
static inline CUstream vgpu_own_stream(CUstream stream, bool of_twin)
{
	return of_twin && !stream ? (CUstream)2 /* CU_STREAM_PER_THREAD */ : stream;
}

#define HOOK(symbol, library, params, args)
#define CUDA_TWINS(symbol, base, first, last, suffix, params, args)                                \
	static inline CUresult as_##symbol(enum vgpu_function twin, VGPU_BARE params)              \
	{                                                                                          \
		CUresult(*real) params = (CUresult(*) params)vgpu_real_pointer(twin);              \
		return real ? real args : CUDA_ERROR_NOT_FOUND;                                    \
	}
#include "loader/hooks.def"
