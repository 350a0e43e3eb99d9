/*
 * Modules: the code of an image loaded into a context, with its functions.
 *
 * The names of variables are not read. All variables of a module have the same address. Their bytes
 * are counted as code.
 */
#include "module/module.h"

#include <stdio.h>
#include <stdlib.h>

#define IMAGE_MAX_BYTES (64u << 20)
#define VARIABLE_BYTES	4096

CUresult code_of(const void *image, struct code **code)
{
	*code = image ? code_read(image) : NULL;
	return *code ? CUDA_SUCCESS : image ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_INVALID_VALUE;
}

void functions_free(struct function **functions, const struct code *code)
{
	for (unsigned int i = 0; i < code->entry_count; i++)
		object_free(functions[i]);
	free(functions);
}

struct function **functions_new(enum object_kind kind, const struct code *code)
{
	/* One element more, because 0 elements would be an allocation of 0 bytes. */
	struct function **functions = must(calloc(code->entry_count + 1, sizeof(*functions)));

	for (unsigned int i = 0; i < code->entry_count; i++) {
		functions[i] = object_new(kind, sizeof(*functions[i]));
		functions[i]->entry = &code->entries[i];
	}
	return functions;
}

struct function *functions_find(struct function **functions, const struct code *code,
				const char *name)
{
	int found = code_entry_find(code, name);

	return found < 0 ? NULL : functions[found];
}

struct module *module_new(struct context *context, struct code *code)
{
	struct module *module = object_new(OBJECT_MODULE, sizeof(*module));

	module->functions = functions_new(OBJECT_FUNCTION, code);
	for (unsigned int i = 0; i < code->entry_count; i++)
		module->functions[i]->module = module;
	module->context = context;
	module->code = code;
	code->references++;
	return module;
}

void module_free(struct module *module)
{
	if (module->library)
		library_forget(module->library, module);
	if (module->variables)
		arena_give(&module->context->device->arena, module->variables);
	module_unload_code(module);
	functions_free(module->functions, module->code);
	code_release(module->code);
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

CUresult module_variable(struct module *module, CUdeviceptr *address, size_t *bytes)
{
	struct range *range = module->variables;

	TRY(module_load_code(module));
	if (!range) {
		range = arena_take(&module->context->device->arena, VARIABLE_BYTES);
		if (!range)
			return CUDA_ERROR_OUT_OF_MEMORY;
		range->id = module->object.serial;
		range->context = module->context->object.serial;
		range->imported = true;
		module->variables = range;
	}
	if (address)
		*address = range->base;
	if (bytes)
		*bytes = range->bytes;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	struct context *context;
	struct code *code;

	TRY(context_enter(NULL, &context));
	TRY_LOCKED(out ? code_of(image, &code) : CUDA_ERROR_INVALID_VALUE);
	*out = object_handle(module_new(context, code));
	code_release(code);
	return driver_leave(CUDA_SUCCESS);
}

/* Options of the compiler have no effect. */
CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, int *options,
			    void **values)
{
	(void)count, (void)options, (void)values;
	return cuModuleLoadData(out, image);
}

CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *image = path ? calloc(1, IMAGE_MAX_BYTES) : NULL;
	FILE *file = image ? fopen(path, "re") : NULL;
	CUresult result = image ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;

	if (file) {
		size_t bytes = fread(image, 1, IMAGE_MAX_BYTES - 1, file);

		result = bytes ? cuModuleLoadData(out, image) : CUDA_ERROR_INVALID_IMAGE;
		fclose(file);
	}
	free(image);
	return result;
}

static CUresult enter(CUmodule handle, const void *out, struct module **module)
{
	TRY(driver_enter());
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*module = object_get(handle, OBJECT_MODULE);
	return *module ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuModuleUnload(CUmodule handle)
{
	struct module *module;

	TRY(enter(handle, &module, &module));
	/* A library's module may only end with the library. */
	if (module->library)
		return driver_leave(CUDA_ERROR_NOT_PERMITTED);
	module_free(module);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetLoadingMode(int *mode)
{
	TRY(driver_enter());
	if (!mode)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*mode = 2; /* lazy */
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	struct function *function;
	struct module *module;

	TRY(enter(handle, out && name ? out : NULL, &module));
	function = functions_find(module->functions, module->code, name);
	if (!function)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	*out = object_handle(function);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
			      const char *name)
{
	struct module *module;

	TRY(enter(handle, (address || bytes) && name ? name : NULL, &module));
	return driver_leave(module_variable(module, address, bytes));
}
