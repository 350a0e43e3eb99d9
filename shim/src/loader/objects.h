/*
 * The process's loaded objects and their symbols, read from memory.
 *
 * This file parses ELF, and is independent of CUDA and of policy. It needs only dl_iterate_phdr. So
 * the library does not depend on libdl, and never calls dlsym, which it wraps itself.
 */
#pragma once

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The numbers of loads and unloads of objects since the process began. */
struct vgpu_object_changes {
	uint64_t loads, unloads;
};

/* Call `use` while no object can be loaded or unloaded. It may call the functions below. It must
 * not call the loader, whose other lock must be taken before the one held here. */
typedef void vgpu_objects_use(struct vgpu_object_changes now, void *data);
void vgpu_objects_while_unchanged(vgpu_objects_use *use, void *data);

/* A loaded object. Valid while it stays loaded. */
struct vgpu_object {
	uintptr_t base, low, high; /* load bias; the address range of its segments */
	int order;		   /* position in the loader's list of objects */
	const char *soname;	   /* "" if it has none */
	const char *path;	   /* the loader's name for it; "": the program */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash, *sysv_hash; /* at least one is set */
};

/* The first object with that soname that defines a function of that name, without this library.
 * Either may be NULL, which means any. */
bool vgpu_object_find(const char *soname, const char *name, struct vgpu_object *out);

/* The object that contains the address in its segments. */
bool vgpu_object_by_address(const void *address, struct vgpu_object *out);

bool vgpu_object_ourselves(struct vgpu_object *out);

/* True if `handle` is what dlopen(NULL) returns. */
bool vgpu_object_is_program(const void *handle);

/* The address of a function that the object defines and exports, or NULL. */
void *vgpu_object_function(const struct vgpu_object *object, const char *name);

/* The first definition in the objects with first <= order < end, without this library. */
void *vgpu_definition_in(const char *name, int first, int end);
