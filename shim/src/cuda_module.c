/*
 * Code, and limits of a context: calls in which the driver takes memory and does not say how much.
 * What can be undone is undone where it does not fit; the rest is load.h's.
 */
#include <stddef.h>

#include "first.h"
#include "hooks.h"
#include "load.h"
#include "local_memory.h"
#include "measure.h"
#include "seen.h"

enum { LIMIT_STACK = 0 };

#define LIMIT_SLACK_BYTES (INT64_C(64) << 20)
#define LIMIT_MOST_BYTES  (INT64_C(1) << 40)

/* Code that was just loaded: does it fit? */
static bool code_fits(struct vgpu_window *window)
{
	return !vgpu_took_too_much(window, vgpu_window_close(window, vgpu_code_taken));
}

static CUresult settle_module(struct vgpu_window *window, CUresult result, const CUmodule *loaded,
			      CUmodule *out)
{
	bool fits = code_fits(window);

	if (result != CUDA_SUCCESS)
		return result;
	if (!fits) {
		(void)cuModuleUnload(*loaded);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = *loaded;
	return CUDA_SUCCESS;
}

static CUresult settle_library(struct vgpu_window *window, CUresult result, const CUlibrary *loaded,
			       CUlibrary *out)
{
	bool fits = code_fits(window);

	if (result != CUDA_SUCCESS)
		return result;
	if (!fits) {
		(void)cuLibraryUnload(*loaded);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = *loaded;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	struct vgpu_window window;
	CUmodule loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_module(&window, real_cuModuleLoad(module ? &loaded : NULL, path), &loaded,
			     module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	struct vgpu_window window;
	CUmodule loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_module(&window, real_cuModuleLoadData(module ? &loaded : NULL, image),
			     &loaded, module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options,
			    void **values)
{
	struct vgpu_window window;
	CUmodule loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_module(
	    &window,
	    real_cuModuleLoadDataEx(module ? &loaded : NULL, image, count, options, values),
	    &loaded, module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	struct vgpu_window window;
	CUmodule loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_module(&window, real_cuModuleLoadFatBinary(module ? &loaded : NULL, image),
			     &loaded, module);
}

CUresult cuModuleUnload(CUmodule module)
{
	struct vgpu_window window;
	CUresult result;

	vgpu_window_open(&window);
	vgpu_forget_seen();
	result = real_cuModuleUnload(module);
	vgpu_window_close(&window, vgpu_code_given);
	return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *jit_options,
			   void **jit_values, unsigned int jit_count, int *options, void **values,
			   unsigned int count)
{
	struct vgpu_window window;
	CUlibrary loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_library(&window,
			      real_cuLibraryLoadData(library ? &loaded : NULL, image, jit_options,
						     jit_values, jit_count, options, values, count),
			      &loaded, library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit_options,
			       void **jit_values, unsigned int jit_count, int *options,
			       void **values, unsigned int count)
{
	struct vgpu_window window;
	CUlibrary loaded = NULL;
	CUresult result = vgpu_load_open(&window);

	if (result != CUDA_SUCCESS)
		return result;
	return settle_library(&window,
			      real_cuLibraryLoadFromFile(library ? &loaded : NULL, path,
							 jit_options, jit_values, jit_count,
							 options, values, count),
			      &loaded, library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
	struct vgpu_window window;
	CUresult result;

	vgpu_window_open(&window);
	vgpu_forget_seen();
	result = real_cuLibraryUnload(library);
	vgpu_window_close(&window, vgpu_code_given);
	return result;
}

/* What may bring lazily loaded code onto the card. */
#define LOADING(symbol, params, args)                                                              \
	CUresult symbol params                                                                     \
	{                                                                                          \
		CUresult result;                                                                   \
                                                                                                   \
		VGPU_CALL_LOADING(result, real_##symbol args);                                     \
		return result;                                                                     \
	}

LOADING(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
	(function, module, name))
LOADING(cuModuleGetGlobal,
	(CUdeviceptr_v1 * dptr, unsigned int *bytes, CUmodule module, const char *name),
	(dptr, bytes, module, name))
LOADING(cuModuleGetGlobal_v2,
	(CUdeviceptr * dptr, size_t *bytes, CUmodule module, const char *name),
	(dptr, bytes, module, name))
LOADING(cuModuleGetTexRef, (void **reference, CUmodule module, const char *name),
	(reference, module, name))
LOADING(cuModuleGetSurfRef, (void **reference, CUmodule module, const char *name),
	(reference, module, name))
LOADING(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library))
LOADING(cuLibraryGetGlobal,
	(CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	(dptr, bytes, library, name))
LOADING(cuLibraryGetManaged,
	(CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	(dptr, bytes, library, name))
LOADING(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *symbol),
	(function, library, symbol))
LOADING(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel))

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUresult result = real_cuLibraryGetKernel(kernel, library, name);

	if (result == CUDA_SUCCESS)
		vgpu_note_kernel(*kernel);
	return result;
}

/* At most `room`; what lies beyond the last is not written. */
CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library)
{
	unsigned int count = 0;
	CUresult result = real_cuLibraryEnumerateKernels(kernels, room, library);

	if (result != CUDA_SUCCESS || real_cuLibraryGetKernelCount(&count, library) != CUDA_SUCCESS)
		return result;
	for (unsigned int i = 0; i < room && i < count; i++)
		vgpu_note_kernel(kernels[i]);
	return result;
}

/* A stack is for every thread that the card can run at once. */
static int64_t limit_bytes(int limit, size_t value)
{
	uint64_t each = limit == LIMIT_STACK ? vgpu_resident_threads() : 1;
	unsigned long long bytes;

	if (__builtin_mul_overflow(each, value, &bytes) || bytes > LIMIT_MOST_BYTES)
		return LIMIT_MOST_BYTES;
	return (int64_t)bytes + LIMIT_SLACK_BYTES;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct vgpu_window window;
	struct vgpu_bounds bounds;
	size_t before = 0;
	CUresult result;

	(void)real_cuCtxGetLimit(&before, limit);
	bounds = (struct vgpu_bounds){-limit_bytes(limit, before), limit_bytes(limit, value)};
	vgpu_window_open(&window);
	result = real_cuCtxSetLimit(limit, value);
	if (!vgpu_took_too_much(&window, vgpu_window_close(&window, bounds)) ||
	    result != CUDA_SUCCESS)
		return result;
	vgpu_window_open(&window);
	(void)real_cuCtxSetLimit(limit, before);
	bounds = (struct vgpu_bounds){-bounds.most_bytes, 0};
	vgpu_window_close(&window, bounds);
	return CUDA_ERROR_OUT_OF_MEMORY;
}
