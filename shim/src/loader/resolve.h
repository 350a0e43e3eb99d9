/* Finds the driver's functions by name, and the wrappers that replace them. */
#pragma once

#include <stdbool.h>

#include "loader/hooks.h"
#include "loader/objects.h"

/* The wrapper function of a hook. */
void *vgpu_wrapper(enum vgpu_function hook);

/* The hook with that name, or -1. */
int vgpu_hook_named(const char *name);

/* Find the driver's library again if it was loaded, moved or unloaded since. Return its load bias,
 * or 0 if it is not loaded. */
uintptr_t vgpu_refresh(enum vgpu_library library);

/* Return the hook's wrapper if `found` is the function `hook` of any loaded copy of the driver. The
 * table is then current. Otherwise return `found`. */
void *vgpu_substitute(void *found, enum vgpu_function hook);

/* The name of a function in the hook's library that is not hooked: looking it up finds the driver.
 */
const char *vgpu_unhooked(enum vgpu_function hook);

/* If the address `unhooked` lies in a driver, that driver's own function `hook`. Otherwise NULL. */
void *vgpu_in_driver(const void *unhooked, enum vgpu_function hook);
