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
	VGPU_LOADER_WRAPPED, /* only called by this library, not wrapped */
	VGPU_LOADER_DLERROR = VGPU_LOADER_WRAPPED,
	VGPU_LOADER_COUNT,
};

/* The interposed function. NULL: this libc lacks it, or has not loaded it yet. */
void *vgpu_loader(enum vgpu_loader_function function);

/* The same for a jump. If this libc lacks it, it is a function that returns NULL. */
void *vgpu_loader_target(enum vgpu_loader_function function);

/* The wrapped function with that name, or -1. */
int vgpu_loader_named(const char *name);

/* This library's own function that replaces it. */
void *vgpu_loader_entry(enum vgpu_loader_function function);

/* Keep the object that contains the address loaded until the process ends. */
void vgpu_loader_keep(const void *address);
