/*
 * Loaded code: modules of a context, libraries of the process, and the functions in both.
 *
 * Each keeps the content of the image that it was loaded from. A function of a module and a kernel
 * of a library are one struct, distinguished by their object's kind; both can be launched.
 */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "base/driver.h"
#include "module/ptx.h"

struct function {
	struct object object; /* OBJECT_FUNCTION or OBJECT_KERNEL */
	struct module *module;
	struct library *library;
	const struct ptx *ptx;
	const struct ptx_entry *entry;
	int dynamic_shared_bytes, carveout_percent;
};

struct module {
	struct object object;
	struct context *context;
	struct library *library; /* that it was loaded for, or NULL */
	struct ptx *ptx;
	struct function **functions; /* one per entry */
	struct module *next_of_library;
	struct range *variables; /* NULL: none was requested yet */
	struct extra code;
	bool loaded; /* false: the code is loaded at the first use of a function */
};

/* An image from memory, or by the path of a file. */
typedef CUresult image_reader(const void *source, struct ptx **ptx);
image_reader image_read, image_read_file;
/* Leaves the compiler's logs empty, if `options` request them; the others have no effect. */
void image_options(unsigned int count, const int *options, void **values);
/* The capability that the GPU of `device` can run. */
CUresult image_fits(const struct ptx *ptx, const struct device *device);

/* One function per entry, or NULL if memory is short. */
struct function **functions_new(enum object_kind kind, const struct ptx *ptx);
void functions_free(struct function **functions, const struct ptx *ptx);
/* The one called `name`, or NULL. */
struct function *functions_find(struct function **functions, const struct ptx *ptx,
				const char *name);
/* A function or a kernel, by either's handle. */
struct function *function_get(const void *handle);

/* A module of `ptx` in the context; takes a reference of its own. */
CUresult module_new(struct context *context, struct ptx *ptx, struct module **out);
void module_free(struct module *module);
/* Loads the code, and returns where a variable is. */
CUresult module_variable(struct module *module, const char *name, CUdeviceptr *address,
			 size_t *bytes);
/* The library's module in a context, made if there is none yet. */
CUresult library_module(struct library *library, struct context *context, struct module **out);
/* The module ends. */
void library_forget(struct library *library, const struct module *module);

/* True if CUDA_MODULE_LOADING defers loading to the first use, the default unless it is EAGER. */
bool loading_is_lazy(void);
/* The code of a module: loaded onto the GPU, if it is not there yet, and unloaded. */
CUresult module_load_code(struct module *module);
void module_unload_code(struct module *module);
/* Loads a function's code for the context; a launch needs its local memory too. */
CUresult function_load(struct function *function, struct context *context);
CUresult function_grow_local(struct function *function, struct context *context);

CUresult function_attribute(const struct function *function, const struct device *device,
			    int attribute, int *value);
/* Blocks of `threads` that a multiprocessor holds: limited by threads and shared memory. */
int resident_blocks(const struct device *device, int threads, size_t shared_bytes);
CUresult function_set_attribute(struct function *function, int attribute, int value);

#endif
