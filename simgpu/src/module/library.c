/*
 * Libraries: code that belongs to the process, not to a context.
 *
 * A kernel can be launched in every context. If a program requests the kernel's function or the
 * library's module in a context, the library is loaded into that context.
 */
#include "module/module.h"

#include <stdlib.h>

struct library {
	struct object object;
	struct code *code;
	struct function **kernels;
	struct module *modules; /* one per context in which the library is loaded */
};

static void library_free(struct library *library)
{
	while (library->modules)
		module_free(library->modules);
	functions_free(library->kernels, library->code);
	code_release(library->code);
	object_free(library);
}

/* Options of the compiler and the library have no effect. */
CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit_options, void **jit_values,
			   unsigned int jit_count, int *options, void **values, unsigned int count)
{
	struct library *library;
	struct code *code;

	(void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values,
	    (void)count;
	TRY(driver_enter());
	TRY_LOCKED(out ? code_of(image, &code) : CUDA_ERROR_INVALID_VALUE);
	library = object_new(OBJECT_LIBRARY, sizeof(*library));
	library->kernels = functions_new(OBJECT_KERNEL, code);
	library->code = code;
	for (unsigned int i = 0; i < code->entry_count; i++)
		library->kernels[i]->library = library;
	*out = object_handle(library);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult enter(CUlibrary handle, const void *out, struct library **library)
{
	TRY(driver_enter());
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*library = object_get(handle, OBJECT_LIBRARY);
	return *library ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
	struct library *library;

	TRY(enter(handle, &library, &library));
	library_free(library);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
	struct function *kernel;
	struct library *library;

	TRY(enter(handle, out && name ? out : NULL, &library));
	kernel = functions_find(library->kernels, library->code, name);
	if (!kernel)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	*out = object_handle(kernel);
	return driver_leave(CUDA_SUCCESS);
}

struct module *library_module(struct library *library, struct context *context)
{
	struct module *module = library->modules;

	while (module && module->context != context)
		module = module->next_of_library;
	if (module)
		return module;
	module = module_new(context, library->code);
	module->library = library;
	module->next_of_library = library->modules;
	return library->modules = module;
}

void library_forget(struct library *library, const struct module *module)
{
	struct module **link = &library->modules;

	while (*link != module)
		link = &(*link)->next_of_library;
	*link = module->next_of_library;
}

static CUresult module_of(struct library *library, struct module **out)
{
	struct context *context;

	TRY(context_current(&context));
	*out = library_module(library, context);
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
	struct library *library;
	struct module *module;

	TRY(enter(handle, out, &library));
	TRY_LOCKED(module_of(library, &module));
	*out = object_handle(module);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle, const char *name)
{
	struct library *library;
	struct module *module;

	TRY(enter(handle, (address || bytes) && name ? name : NULL, &library));
	TRY_LOCKED(module_of(library, &module));
	return driver_leave(module_variable(module, address, bytes));
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
	struct function *kernel, *function;
	struct module *module;

	TRY(driver_enter());
	kernel = object_get(handle, OBJECT_KERNEL);
	if (!out || !kernel)
		return driver_leave(out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
	TRY_LOCKED(module_of(kernel->library, &module));
	function = module->functions[kernel->entry - module->code->entries];
	*out = object_handle(function);
	return driver_leave(CUDA_SUCCESS);
}
