/*
 * Modules: PTX text or machine code (cubin) loaded into a context.
 *
 * What holds several of both (fatbin) is refused with the driver's code for code that fits no card
 * here.
 */
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cubin.h"

#define NEWEST_PTX	90 /* PTX ISA 9.0, of CUDA 13.0 */
#define IMAGE_MAX_BYTES (64u << 20)

enum {
	JIT_WALL_TIME = 2,
	JIT_INFO_LOG = 3,
	JIT_INFO_LOG_BYTES = 4,
	JIT_ERROR_LOG = 5,
	JIT_ERROR_LOG_BYTES = 6,
};

static const uint8_t cubin_magic[] = {0x7f, 'E', 'L', 'F'};
static const uint8_t fatbin_magic[] = {0x50, 0xed, 0x55, 0xba};
static const uint8_t wrapper_magic[] = {0xb1, 0x43, 0x62, 0x46}; /* fatbinary as nvcc wraps it */

static bool begins(const void *image, const uint8_t *magic)
{
	const uint8_t *bytes = image;

	for (int i = 0; i < 4; i++)
		if (bytes[i] != magic[i])
			return false;
	return true;
}

/* The size is known where it comes from a file; in memory its own headers are trusted. */
static CUresult read_image(const void *image, size_t bytes, struct ptx **ptx)
{
	static const CUresult results[] = {
	    [PTX_OK] = CUDA_SUCCESS,
	    [PTX_NOT_PTX] = CUDA_ERROR_INVALID_IMAGE,
	    [PTX_MALFORMED] = CUDA_ERROR_INVALID_PTX,
	    [PTX_NO_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
	};
	CUresult result;

	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	if (begins(image, fatbin_magic) || begins(image, wrapper_magic))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (begins(image, cubin_magic)) {
		enum ptx_result read = cubin_parse(image, bytes, ptx);
		return read == PTX_NOT_PTX     ? CUDA_ERROR_NO_BINARY_FOR_GPU
		       : read == PTX_MALFORMED ? CUDA_ERROR_INVALID_IMAGE
					       : results[read];
	}
	result = results[ptx_parse(image, ptx)];
	if (result == CUDA_SUCCESS && (*ptx)->version > NEWEST_PTX) {
		ptx_release(*ptx);
		result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	}
	return result;
}

CUresult image_read(const void *image, struct ptx **ptx)
{
	return read_image(image, SIZE_MAX, ptx);
}

CUresult image_read_file(const char *path, struct ptx **ptx)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	char *text = NULL;
	size_t bytes = 0;
	FILE *file;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(path, "re");
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	for (size_t cap = 1 << 16; cap <= IMAGE_MAX_BYTES; cap *= 2) {
		char *grown = realloc(text, cap);

		if (!grown)
			break;
		text = grown;
		bytes += fread(text + bytes, 1, cap - bytes - 1, file);
		if (bytes < cap - 1) {
			/* At least four bytes, for the magic numbers. */
			memset(text + bytes, 0, bytes < 4 ? 4 - bytes : 1);
			result = read_image(text, bytes, ptx);
			break;
		}
	}
	fclose(file);
	free(text);
	return result;
}

/* Where the value of an option stands, or NULL where it is not given. */
static void **option(int wanted, unsigned int count, const int *options, void **values)
{
	for (unsigned int i = 0; i < count; i++)
		if (options[i] == wanted)
			return &values[i];
	return NULL;
}

void image_options(unsigned int count, const int *options, void **values)
{
	static const int logs[][2] = {{JIT_INFO_LOG, JIT_INFO_LOG_BYTES},
				      {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES}};
	void **seconds = option(JIT_WALL_TIME, count, options, values);

	if (seconds)
		*seconds = NULL;
	for (int i = 0; i < 2; i++) {
		void **text = option(logs[i][0], count, options, values);
		void **bytes = option(logs[i][1], count, options, values);

		if (text && *text && bytes && *bytes)
			*(char *)*text = '\0';
		/* The size of the buffer goes in, what was written to it comes out. */
		if (bytes)
			*bytes = NULL;
	}
}

CUresult image_fits(const struct ptx *ptx, const struct device *device)
{
	unsigned int capability =
	    10 * device->card->capability_major + device->card->capability_minor;

	/* Text is compiled for any newer card; code runs on newer ones of its generation. */
	if (!ptx->machine_code)
		return ptx->target <= capability ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
	return ptx->target <= capability && ptx->target / 10 == capability / 10
		   ? CUDA_SUCCESS
		   : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

void functions_free(struct function **functions, const struct ptx *ptx)
{
	for (unsigned int i = 0; functions && i < ptx->entry_count; i++)
		if (functions[i])
			object_free(functions[i]);
	free(functions);
}

struct function **functions_new(enum object_kind kind, const struct ptx *ptx)
{
	/* One more, so that no entries is not no memory. */
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
	for (unsigned int i = 0; i < ptx->entry_count; i++)
		if (strcmp(ptx->entries[i].name, name) == 0)
			return functions[i];
	return NULL;
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

static CUresult load(CUmodule *out, CUresult (*read)(const void *, struct ptx **),
		     const void *source)
{
	struct context *context;
	struct module *module;
	struct ptx *ptx;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(&context);
	if (result == CUDA_SUCCESS)
		result = out ? read(source, &ptx) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	result = module_new(context, ptx, &module);
	ptx_release(ptx);
	if (result == CUDA_SUCCESS)
		*out = object_handle(module);
	return driver_leave(result);
}

static CUresult read_path(const void *path, struct ptx **ptx)
{
	return image_read_file(path, ptx);
}

CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	return load(out, read_path, path);
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(out, image_read, image);
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, int *options,
			    void **values)
{
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	image_options(count, options, values);
	return load(out, image_read, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
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
	/* A library's module goes with the library. */
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
	return driver_leave(function_reached(function, module->context, LOAD_AT_FUNCTION));
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
{
	struct module *module;
	CUresult result = enter(handle, count, &module);

	if (result != CUDA_SUCCESS)
		return result;
	*count = module->ptx->entry_count;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int cap, CUmodule handle)
{
	struct module *module;
	CUresult result = enter(handle, out, &module);

	if (result != CUDA_SUCCESS)
		return result;
	for (unsigned int i = 0; i < cap && i < module->ptx->entry_count; i++)
		out[i] = object_handle(module->functions[i]);
	return driver_leave(CUDA_SUCCESS);
}

/* Global variables are not simulated: a text's are not there; but code comes as for one. */
CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
			      const char *name)
{
	struct module *module;
	CUresult result = enter(handle, (address || bytes) && name ? name : NULL, &module);

	if (result != CUDA_SUCCESS)
		return result;
	result = module_load_code(module);
	return driver_leave(result == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : result);
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *bytes, CUmodule handle,
			   const char *name)
{
	CUdeviceptr wide_address;
	size_t wide_bytes;

	return cuModuleGetGlobal_v2(address ? &wide_address : NULL, bytes ? &wide_bytes : NULL,
				    handle, name);
}
