/*
 * Resolves names: the driver's functions, and the wrappers in their place.
 */
#pragma once

#include <stdbool.h>

#include "loader/hooks.h"
#include "loader/objects.h"

/* The wrapper of a hook. */
void *vgpu_wrapper(enum vgpu_function hook);

/* The hook of that name, or -1. */
int vgpu_hook_named(const char *name);

/* Find the driver's library again if it has been loaded, moved or unloaded since; returns its load
 * bias, 0 if it is not loaded. */
uintptr_t vgpu_refresh(enum vgpu_library library);

/* The wrapper if `found` is a driver library's own function `hook` (any copy of the library, so
 * that a second one does not bypass ours), and the table is then current; else `found`. */
void *vgpu_substitute(void *found, enum vgpu_function hook);

/* A name of the hook's library that is not hooked, so that a lookup of it finds the driver
 * itself... */
const char *vgpu_unhooked(enum vgpu_function hook);

/* ...and the driver's own function `hook`, if that lookup's answer lies in a driver; else NULL. */
void *vgpu_in_driver(const void *unhooked, enum vgpu_function hook);
