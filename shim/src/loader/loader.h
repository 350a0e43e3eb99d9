/*
 * The dynamic loader's functions that programs call and this library interposes.
 */
#pragma once

#include <stdbool.h>

#include "loader/objects.h"

enum vgpu_loader_function {
	VGPU_LOADER_DLSYM,
	VGPU_LOADER_DLVSYM,
	VGPU_LOADER_DLOPEN,
	VGPU_LOADER_DLMOPEN,
	VGPU_LOADER_WRAPPED, /* those from here on are called, not wrapped */
	VGPU_LOADER_DLERROR = VGPU_LOADER_WRAPPED,
	VGPU_LOADER_COUNT,
};

/* The interposed function; NULL if this libc lacks it, or not yet. */
void *vgpu_loader(enum vgpu_loader_function function);

/* The same, to jump to: a function that returns NULL in place of a missing one. */
void *vgpu_loader_target(enum vgpu_loader_function function);

/* The wrapped function of that name, or -1. */
int vgpu_loader_named(const char *name);

/* The library's entry in its place. */
void *vgpu_loader_entry(enum vgpu_loader_function function);

/* Keep the object that contains the address loaded until the process ends. */
void vgpu_loader_keep(const void *address);
