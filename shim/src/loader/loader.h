/* The dynamic loader's functions that programs call and this library interposes. */
#pragma once

#include <stdbool.h>

#include "loader/objects.h"

enum vgpu_loader_function {
	VGPU_LOADER_DLSYM,
	VGPU_LOADER_DLVSYM,
	VGPU_LOADER_DLOPEN,
	VGPU_LOADER_DLMOPEN,
	VGPU_LOADER_WRAPPED, /* the functions from here on are called by this library, but not
				wrapped */
	VGPU_LOADER_DLERROR = VGPU_LOADER_WRAPPED,
	VGPU_LOADER_COUNT,
};

/* The real function behind this library. NULL: libc lacks it, or libdl is not loaded yet. */
void *vgpu_loader(enum vgpu_loader_function function);

/* The address to which dlsym.S jumps: the real function, or else a function that returns NULL. */
void *vgpu_loader_target(enum vgpu_loader_function function);

/* The wrapped function with that name, or -1. */
int vgpu_loader_named(const char *name);

/* This library's function that replaces a wrapped one. */
void *vgpu_loader_entry(enum vgpu_loader_function function);

/* Keep the object that contains the address loaded until the process ends. */
void vgpu_loader_keep(const void *address);
