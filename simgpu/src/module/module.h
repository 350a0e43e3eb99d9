/*
 * Loaded code: modules of a context, libraries of the process, and the functions in both.
 *
 * Modules and libraries keep what was read from their image. A module's function and a library's
 * kernel are the same struct, and the object's kind distinguishes them. Both can be launched.
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
	struct library *library; /* the library that it was loaded for, or NULL */
	struct code *code;
	struct function **functions; /* one per entry of the code */
	struct module *next_of_library;
	struct range *variables; /* NULL: no address was requested */
	struct extra memory;	 /* the memory of its code */
	bool loaded;		 /* set when a function's first use loads the code */
};

/* Reads the code of an image in memory. */
CUresult code_of(const void *image, struct code **code);

/* Makes one function per entry of the code. */
struct function **functions_new(enum object_kind kind, const struct code *code);
void functions_free(struct function **functions, const struct code *code);
/* Returns the function called `name`, or NULL. */
struct function *functions_find(struct function **functions, const struct code *code,
				const char *name);
/* Returns the function or kernel with that handle, or NULL. */
struct function *function_get(const void *handle);

/* Makes a module of `code` in the context. The module has its own reference to the code. */
struct module *module_new(struct context *context, struct code *code);
void module_free(struct module *module);
/* Loads the code, and returns the address and size of its variables. */
CUresult module_variable(struct module *module, CUdeviceptr *address, size_t *bytes);
/* Returns the library's module in a context. Makes it if there is none. */
struct module *library_module(struct library *library, struct context *context);
/* Removes an ending module from the library. */
void library_forget(struct library *library, const struct module *module);

/* Loads a module's code onto the GPU, if it is not loaded. */
CUresult module_load_code(struct module *module);
void module_unload_code(struct module *module);
/* Loads a function's code for the context, and allocates its local memory. */
CUresult function_load(struct function *function, struct context *context);

#endif
