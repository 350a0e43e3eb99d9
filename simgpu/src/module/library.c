/*
 * Libraries: code that belongs to the process, not to a context.
 *
 * A kernel can be launched in every context. When a program requests a context's own function or
 * module of it, the library is loaded into that context. If its code does not fit the GPU, its
 * kernels are listed and cannot be launched.
 */
#include "module/module.h"

#include <stdlib.h>

struct library {
	struct object object;
	struct ptx *ptx;
	struct function **kernels;
	struct module *modules; /* one per context that has it */
};

static void library_free(struct library *library)
{
	while (library->modules)
		module_free(library->modules);
	functions_free(library->kernels, library->ptx);
	ptx_release(library->ptx);
	object_free(library);
}

/* Eager loading loads the code into the current context; others load it at its first use. */
static CUresult bring_in(struct library *library)
{
	struct context *context;
	struct module *module;

	if (loading_is_lazy() || context_current(&context) != CUDA_SUCCESS ||
	    image_fits(library->ptx, context->device) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	return library_module(library, context, &module);
}

static CUresult load(CUlibrary *out, image_reader *read, const void *source)
{
	struct library *library;
	struct ptx *ptx;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = out ? read(source, &ptx) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	library = object_new(OBJECT_LIBRARY, sizeof(*library));
	if (library)
		library->kernels = functions_new(OBJECT_KERNEL, ptx);
	if (!library || !library->kernels) {
		if (library)
			object_free(library);
		ptx_release(ptx);
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	library->ptx = ptx;
	for (unsigned int i = 0; i < ptx->entry_count; i++)
		library->kernels[i]->library = library;
	result = bring_in(library);
	if (result == CUDA_SUCCESS)
		*out = object_handle(library);
	else
		library_free(library);
	return driver_leave(result);
}

/* Options of the compiler have values; those of the library, BINARY_IS_PRESERVED, may have none. */
static CUresult read_options(int *jit_options, void **jit_values, unsigned int jit_count,
			     const int *options, unsigned int count)
{
	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if ((jit_count && (!jit_options || !jit_values)) || (count && !options))
		return CUDA_ERROR_INVALID_VALUE;
	image_options(jit_count, jit_options, jit_values);
	return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit_options, void **jit_values,
			   unsigned int jit_count, int *options, void **values, unsigned int count)
{
	CUresult result = read_options(jit_options, jit_values, jit_count, options, count);

	(void)values;
	return result == CUDA_SUCCESS ? load(out, image_read, image) : result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit_options,
			       void **jit_values, unsigned int jit_count, int *options,
			       void **values, unsigned int count)
{
	CUresult result = read_options(jit_options, jit_values, jit_count, options, count);

	(void)values;
	return result == CUDA_SUCCESS ? load(out, image_read_file, path) : result;
}

static CUresult enter(CUlibrary handle, const void *out, struct library **library)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*library = object_get(handle, OBJECT_LIBRARY);
	return *library ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
	struct library *library;
	CUresult result = enter(handle, &library, &library);

	if (result != CUDA_SUCCESS)
		return result;
	library_free(library);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
	struct function *kernel;
	struct library *library;
	CUresult result = enter(handle, out && name ? out : NULL, &library);

	if (result != CUDA_SUCCESS)
		return result;
	kernel = functions_find(library->kernels, library->ptx, name);
	if (!kernel)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	*out = object_handle(kernel);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int cap, CUlibrary handle)
{
	struct library *library;
	CUresult result = enter(handle, out, &library);

	if (result != CUDA_SUCCESS)
		return result;
	for (unsigned int i = 0; i < cap && i < library->ptx->entry_count; i++)
		out[i] = object_handle(library->kernels[i]);
	return driver_leave(CUDA_SUCCESS);
}

CUresult library_module(struct library *library, struct context *context, struct module **out)
{
	CUresult result;

	for (*out = library->modules; *out; *out = (*out)->next_of_library)
		if ((*out)->context == context)
			return CUDA_SUCCESS;
	result = module_new(context, library->ptx, out);
	if (result != CUDA_SUCCESS)
		return result;
	(*out)->library = library;
	(*out)->next_of_library = library->modules;
	library->modules = *out;
	return CUDA_SUCCESS;
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
	CUresult result = context_current(&context);

	return result == CUDA_SUCCESS ? library_module(library, context, out) : result;
}

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
	struct library *library;
	struct module *module;
	CUresult result = enter(handle, out, &library);

	if (result != CUDA_SUCCESS)
		return result;
	result = module_of(library, &module);
	if (result == CUDA_SUCCESS)
		*out = object_handle(module);
	return driver_leave(result);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle, const char *name)
{
	struct library *library;
	struct module *module;
	CUresult result = enter(handle, (address || bytes) && name ? name : NULL, &library);

	if (result != CUDA_SUCCESS)
		return result;
	result = module_of(library, &module);
	if (result == CUDA_SUCCESS)
		result = module_variable(module, name, address, bytes);
	return driver_leave(result);
}

static CUresult enter_kernel(CUkernel handle, const void *out, struct function **kernel)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*kernel = object_get(handle, OBJECT_KERNEL);
	return *kernel ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
	struct function *kernel, *function;
	struct module *module;
	CUresult result = enter_kernel(handle, out, &kernel);

	if (result != CUDA_SUCCESS)
		return result;
	result = module_of(kernel->library, &module);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	function = module->functions[kernel->entry - module->ptx->entries];
	*out = object_handle(function);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
	struct function *kernel;
	CUresult result = enter_kernel(handle, name, &kernel);

	if (result != CUDA_SUCCESS)
		return result;
	*name = kernel->entry->name;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel handle, CUdevice ordinal)
{
	struct function *kernel;
	struct device *device;
	CUresult result = enter_kernel(handle, value, &kernel);

	if (result != CUDA_SUCCESS)
		return result;
	result = device_get(ordinal, &device);
	if (result == CUDA_SUCCESS)
		result = function_attribute(kernel, device, attribute, value);
	return driver_leave(result);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel handle, CUdevice ordinal)
{
	struct function *kernel;
	struct device *device;
	CUresult result = enter_kernel(handle, &kernel, &kernel);

	if (result != CUDA_SUCCESS)
		return result;
	result = device_get(ordinal, &device);
	if (result == CUDA_SUCCESS)
		result = function_set_attribute(kernel, attribute, value);
	return driver_leave(result);
}
