/*
 * Code: calls in which the driver takes memory and does not say how much. What can be undone is
 * undone where it does not fit; the rest is load.h's. A module's code is measured in the context
 * that it was loaded in (homes.h), whichever is current.
 */
#include <stddef.h>

#include "first.h"
#include "homes.h"
#include "hooks.h"
#include "lives.h"
#include "load.h"
#include "measure.h"
#include "seen.h"

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
	vgpu_home_begin(*loaded, window->place.context);
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
	CUcontext context = vgpu_home_of_module(module);
	struct vgpu_visit visit = vgpu_visit_context(context);
	struct vgpu_window window;
	struct vgpu_home home;
	CUresult result;

	vgpu_window_open(&window);
	vgpu_visit_end(visit);
	vgpu_forget_seen();
	home = vgpu_home_end(module);
	result = real_cuModuleUnload(module);
	if (result != CUDA_SUCCESS)
		vgpu_home_stays(module, home);
	visit = vgpu_visit_context(context);
	vgpu_window_close(&window, vgpu_code_given);
	vgpu_visit_end(visit);
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

/* A library has code in every context that it was used in, and the card's account does not tell
 * whose is gone: where there are several on it, all stays charged until they end. */
CUresult cuLibraryUnload(CUlibrary library)
{
	const struct vgpu_bounds nothing = {0, 0};
	struct vgpu_window window;
	CUresult result;

	vgpu_window_open(&window);
	vgpu_forget_seen();
	vgpu_homes_end_of_kernels();
	result = real_cuLibraryUnload(library);
	vgpu_window_close(&window, vgpu_place_alone(window.place) ? vgpu_code_given : nothing);
	return result;
}

/* What may bring lazily loaded code onto the card: a module's to its own context, a library's to
 * the current one. */
#define LOADING_IN(home, symbol, params, args)                                                     \
	CUresult symbol params                                                                     \
	{                                                                                          \
		CUresult result;                                                                   \
                                                                                                   \
		VGPU_CALL_LOADING_IN(home, result, real_##symbol args);                            \
		return result;                                                                     \
	}
#define LOADING(symbol, params, args) LOADING_IN(NULL, symbol, params, args)
#define OF_MODULE(symbol, params, args)                                                            \
	LOADING_IN(vgpu_home_of_module(module), symbol, params, args)

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result;

	VGPU_CALL_LOADING_IN(vgpu_home_of_module(module), result,
			     real_cuModuleGetFunction(function, module, name));
	if (result == CUDA_SUCCESS)
		vgpu_home_of_new(*function, module);
	return result;
}

/* At most `room`; what lies beyond the last is not written. */
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module)
{
	unsigned int count = 0;
	CUresult result;

	VGPU_CALL_LOADING_IN(vgpu_home_of_module(module), result,
			     real_cuModuleEnumerateFunctions(functions, room, module));
	if (result != CUDA_SUCCESS || real_cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS)
		return result;
	for (unsigned int i = 0; i < room && i < count; i++)
		vgpu_home_of_new(functions[i], module);
	return result;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	CUresult result;

	VGPU_CALL_LOADING(result, real_cuLibraryGetModule(module, library));
	if (result == CUDA_SUCCESS)
		vgpu_home_begin_here(*module);
	return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	CUresult result;

	VGPU_CALL_LOADING(result, real_cuKernelGetFunction(function, kernel));
	if (result == CUDA_SUCCESS)
		vgpu_home_of_kernels(*function);
	return result;
}

OF_MODULE(cuModuleGetGlobal,
	  (CUdeviceptr_v1 * dptr, unsigned int *bytes, CUmodule module, const char *name),
	  (dptr, bytes, module, name))
OF_MODULE(cuModuleGetGlobal_v2,
	  (CUdeviceptr * dptr, size_t *bytes, CUmodule module, const char *name),
	  (dptr, bytes, module, name))
OF_MODULE(cuModuleGetTexRef, (void **reference, CUmodule module, const char *name),
	  (reference, module, name))
OF_MODULE(cuModuleGetSurfRef, (void **reference, CUmodule module, const char *name),
	  (reference, module, name))
LOADING(cuLibraryGetGlobal,
	(CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	(dptr, bytes, library, name))
LOADING(cuLibraryGetManaged,
	(CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	(dptr, bytes, library, name))
LOADING(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *symbol),
	(function, library, symbol))

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
