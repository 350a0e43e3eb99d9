/*
 * The process's loaded objects and their symbols, read from memory.
 *
 * Parses ELF; independent of CUDA and of policy. Needs dl_iterate_phdr alone, so that the library
 * does not depend on libdl and calls no dlsym, its own least of all.
 */
#pragma once

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* Number of loads and unloads of objects since the process began. */
struct vgpu_object_changes {
	uint64_t loads, unloads;
};

/* Runs `use` while nothing is loaded or unloaded. It may call the functions below, but not the
 * loader (whose other lock precedes the one that is then held). */
typedef void vgpu_objects_use(struct vgpu_object_changes now, void *data);
void vgpu_objects_while_unchanged(vgpu_objects_use *use, void *data);

/* A loaded object as found; valid while it stays loaded. */
struct vgpu_object {
	uintptr_t base, low, high; /* load bias; the address range of its segments */
	int order;		   /* position in the loader's list */
	const char *soname;	   /* "" if it has none */
	const char *path;	   /* the loader's name; "": the program */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash, *sysv_hash; /* at least one is there */
};

/* First object of that soname that defines a function of that name, this library excluded; NULL:
 * any. */
bool vgpu_object_find(const char *soname, const char *name, struct vgpu_object *out);

/* The object in whose segments the address lies. */
bool vgpu_object_by_address(const void *address, struct vgpu_object *out);

bool vgpu_object_ourselves(struct vgpu_object *out);

/* True if that is the handle of dlopen(NULL). */
bool vgpu_object_is_program(const void *handle);

/* Address of a function that the object defines and exports, or NULL. */
void *vgpu_object_function(const struct vgpu_object *object, const char *name);

/* The first definition among the objects with first <= order < end, this library excluded. */
void *vgpu_definition_in(const char *name, int first, int end);
