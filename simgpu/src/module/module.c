/*
 * Modules: the code of an image (image.c) loaded into a context, with its functions and variables.
 *
 * The variables of a module have addresses once one of them is asked for; the memory is part of
 * what the code takes.
 */
#include "module/module.h"

#include <stdlib.h>
#include <string.h>

#define REUSED_MAX_BYTES (2u << 20)

void functions_free(struct function **functions, const struct ptx *ptx)
{
	for (unsigned int i = 0; functions && i < ptx->entry_count; i++)
		if (functions[i])
			object_free(functions[i]);
	free(functions);
}

struct function **functions_new(enum object_kind kind, const struct ptx *ptx)
{
	/* One more, so that a count of 0 is not an allocation of 0 bytes. */
	struct function **functions = calloc(ptx->entry_count + 1, sizeof(*functions));

	for (unsigned int i = 0; functions && i < ptx->entry_count; i++) {
		functions[i] = object_new(kind, sizeof(*functions[i]));
		if (!functions[i]) {
			functions_free(functions, ptx);
			return NULL;
		}
		functions[i]->ptx = ptx;
		functions[i]->entry = &ptx->entries[i];
	}
	return functions;
}

struct function *functions_find(struct function **functions, const struct ptx *ptx,
				const char *name)
{
	int found = ptx_entry_find(ptx, name);

	return found < 0 ? NULL : functions[found];
}

CUresult module_new(struct context *context, struct ptx *ptx, struct module **out)
{
	CUresult result = image_fits(ptx, context->device);
	struct module *module;

	if (result != CUDA_SUCCESS)
		return result;
	module = object_new(OBJECT_MODULE, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->functions = functions_new(OBJECT_FUNCTION, ptx);
	if (!module->functions) {
		object_free(module);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (unsigned int i = 0; i < ptx->entry_count; i++)
		module->functions[i]->module = module;
	module->context = context;
	module->ptx = ptx;
	ptx->references++;
	*out = module;
	result = loading_is_lazy() ? CUDA_SUCCESS : module_load_code(module);
	if (result != CUDA_SUCCESS)
		module_free(module);
	return result;
}

void module_free(struct module *module)
{
	if (module->library)
		library_forget(module->library, module);
	if (module->variables)
		arena_give(&module->context->device->arena, module->variables);
	module_unload_code(module);
	functions_free(module->functions, module->ptx);
	ptx_release(module->ptx);
	object_free(module);
}

void modules_forget(struct context *context)
{
	uint32_t at = 0;
	struct module *module;

	while ((module = object_next(OBJECT_MODULE, &at)))
		if (module->context == context)
			module_free(module);
}

/* Their memory begins as the image states; the rest is zero. */
static CUresult variables_place(struct module *module)
{
	const struct ptx *ptx = module->ptx;
	struct range *range;

	if (module->variables)
		return CUDA_SUCCESS;
	range = arena_take(&module->context->device->arena, ptx->variables_bytes);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->id = module->object.serial;
	range->context = module->context->object.serial;
	range->imported = true;
	/* Large ranges have fresh pages. */
	if (ptx->variables_bytes <= REUSED_MAX_BYTES)
		memset((void *)(uintptr_t)range->base, 0, ptx->variables_bytes);
	if (ptx->initial_bytes)
		memcpy((void *)(uintptr_t)range->base, ptx->initial, ptx->initial_bytes);
	module->variables = range;
	return CUDA_SUCCESS;
}

CUresult module_variable(struct module *module, const char *name, CUdeviceptr *address,
			 size_t *bytes)
{
	const struct ptx_variable *found;
	CUresult result = module_load_code(module);

	if (result != CUDA_SUCCESS)
		return result;
	found = ptx_variable_find(module->ptx, name);
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	result = variables_place(module);
	if (result != CUDA_SUCCESS)
		return result;
	if (address)
		*address = module->variables->base + found->offset;
	if (bytes)
		*bytes = found->bytes;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, image_reader *read, const void *source)
{
	struct context *context;
	struct module *module;
	struct ptx *ptx;
	CUresult result = context_enter(NULL, &context);

	if (result != CUDA_SUCCESS)
		return result;
	result = out ? read(source, &ptx) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	result = module_new(context, ptx, &module);
	ptx_release(ptx);
	if (result == CUDA_SUCCESS)
		*out = object_handle(module);
	return driver_leave(result);
}

CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	return load(out, image_read_file, path);
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(out, image_read, image);
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, int *options,
			    void **values)
{
	if (!driver_is_up())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	image_options(count, options, values);
	return load(out, image_read, image);
}

static CUresult enter(CUmodule handle, const void *out, struct module **module)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*module = object_get(handle, OBJECT_MODULE);
	return *module ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuModuleUnload(CUmodule handle)
{
	struct module *module;
	CUresult result = enter(handle, &module, &module);

	if (result != CUDA_SUCCESS)
		return result;
	/* A library's module ends with the library. */
	if (module->library)
		return driver_leave(CUDA_ERROR_NOT_PERMITTED);
	module_free(module);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetLoadingMode(int *mode)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*mode = loading_is_lazy() ? 2 : 1;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	struct function *function;
	struct module *module;
	CUresult result = enter(handle, out && name ? out : NULL, &module);

	if (result != CUDA_SUCCESS)
		return result;
	function = functions_find(module->functions, module->ptx, name);
	if (!function)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	*out = object_handle(function);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
			      const char *name)
{
	struct module *module;
	CUresult result = enter(handle, (address || bytes) && name ? name : NULL, &module);

	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(module_variable(module, name, address, bytes));
}
