/*
 * The process's loaded objects and their symbols, read from memory.
 *
 * Of libc only dl_iterate_phdr is used. So the library need not depend on libdl, or call dlsym,
 * which it wraps itself.
 */
#pragma once

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The numbers of loads and unloads of objects since the process began. */
struct vgpu_object_changes {
	uint64_t loads, unloads;
};

/* Call `use` while no object can be loaded or unloaded. `use` may call the functions below, but not
 * the loader. The loader takes a lock that no thread may take after the lock held here. */
typedef void vgpu_objects_use(struct vgpu_object_changes now, void *data);
void vgpu_objects_while_unchanged(vgpu_objects_use *use, void *data);

/* A loaded object. The pointers are valid while the object stays loaded. */
struct vgpu_object {
	uintptr_t base, low, high; /* load bias; the address range of its segments */
	int order;		   /* position in the loader's list of objects */
	const char *soname;	   /* "" if it has none */
	const char *path;	   /* the loader's name for it; "": the program */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash, *sysv_hash; /* at least one is set */
};

/* The first object, except this library, that has the soname and defines the function `name`. NULL
 * means any soname or any function. */
bool vgpu_object_find(const char *soname, const char *name, struct vgpu_object *out);

/* The object whose segments contain the address. */
bool vgpu_object_by_address(const void *address, struct vgpu_object *out);

bool vgpu_object_ourselves(struct vgpu_object *out);

/* True if `handle` is what dlopen(NULL) returns. */
bool vgpu_object_is_program(const void *handle);

/* The address of a function that the object defines and exports, or NULL. */
void *vgpu_object_function(const struct vgpu_object *object, const char *name);

/* The first definition in the objects with first <= order < end, except this library. */
void *vgpu_definition_in(const char *name, int first, int end);
