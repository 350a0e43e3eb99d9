/*
 * Loaded code: modules of a context, libraries of the process, and the functions in both.
 *
 * Each keeps the content of the image that it was loaded from. A function of a module and a kernel
 * of a library are one struct, distinguished by their object's kind; both can be launched.
 */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "base/driver.h"
#include "module/code.h"

struct function {
	struct object object; /* OBJECT_FUNCTION or OBJECT_KERNEL */
	struct module *module;
	struct library *library;
	const struct code_entry *entry;
};

struct module {
	struct object object;
	struct context *context;
	struct library *library; /* that it was loaded for, or NULL */
	struct code *code;
	struct function **functions; /* one per entry */
	struct module *next_of_library;
	struct range *variables; /* NULL: none was requested yet */
	struct extra memory;	 /* of the code */
	bool loaded;		 /* the first use of a function loads the code */
};

/* The code of an image in memory. */
CUresult code_of(const void *image, struct code **code);

/* One function per entry. */
struct function **functions_new(enum object_kind kind, const struct code *code);
void functions_free(struct function **functions, const struct code *code);
/* The one called `name`, or NULL. */
struct function *functions_find(struct function **functions, const struct code *code,
				const char *name);
/* A function or a kernel, by either's handle. */
struct function *function_get(const void *handle);

/* A module of `code` in the context; takes a reference of its own. */
struct module *module_new(struct context *context, struct code *code);
void module_free(struct module *module);
/* Loads the code, and returns where a variable is. */
CUresult module_variable(struct module *module, CUdeviceptr *address, size_t *bytes);
/* The library's module in a context, made if there is none yet. */
struct module *library_module(struct library *library, struct context *context);
/* The module ends. */
void library_forget(struct library *library, const struct module *module);

/* The code of a module: loaded onto the GPU, if it is not there yet, and unloaded. */
CUresult module_load_code(struct module *module);
void module_unload_code(struct module *module);
/* Loads a function's code for the context, and takes its local memory. */
CUresult function_load(struct function *function, struct context *context);

#endif
