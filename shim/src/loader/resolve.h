/* Finds the driver's functions by name, and the wrappers that replace them. */
#pragma once

#include <stdbool.h>

#include "loader/hooks.h"
#include "loader/objects.h"

void *vgpu_wrapper(enum vgpu_function hook);

/* The hook with that name, or -1. */
int vgpu_hook_named(const char *name);

/* Find the driver's library again if any object was loaded or unloaded since the last call. Return
 * the library's load bias, or 0 if it is not loaded. */
uintptr_t vgpu_refresh(enum vgpu_library library);

/* Return the hook's wrapper if `found` is the function `hook` of any loaded copy of the driver.
 * Otherwise return `found`. If `found` is not NULL, vgpu_real is up to date afterwards. */
void *vgpu_substitute(void *found, enum vgpu_function hook);

/* The name of a function of the hook's library that is not hooked. A lookup of it finds the
 * driver. */
const char *vgpu_unhooked(enum vgpu_function hook);

/* The function `hook` of the driver that contains the address `unhooked`. NULL: no driver does. */
void *vgpu_in_driver(const void *unhooked, enum vgpu_function hook);
