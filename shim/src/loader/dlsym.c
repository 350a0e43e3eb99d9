/*
 * What dlsym and dlvsym return for the names of hooks.
 *
 * The real lookup is made first. If it finds this library's export (usual in a search of the whole
 * process, because the library is preloaded), the search goes on behind this library. If either
 * search finds the driver's own function, the program gets the wrapper instead. Any other function,
 * for example a private library's of the same name, is returned as it is.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>

#include "loader/loader.h"
#include "loader/objects.h"
#include "loader/resolve.h"

/* Called from dlsym.S. */
void *vgpu_dlsym_target(void *handle, const char *name);
void *vgpu_dlvsym_target(void *handle, const char *name);
void *vgpu_dlsym(void *handle, const char *name, const void *caller);
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller);

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
typedef char *dlerror_function(void);

/* The address to which dlsym.S jumps. NULL: dlsym.S calls vgpu_dlsym or vgpu_dlvsym for that
 * name. */
static void *target(enum vgpu_loader_function function, const char *name)
{
	bool ours = vgpu_hook_named(name) >= 0 || vgpu_loader_named(name) >= 0;

	return ours && vgpu_loader(function) ? NULL : vgpu_loader_target(function);
}

void *vgpu_dlsym_target(void *handle, const char *name)
{
	(void)handle;
	return target(VGPU_LOADER_DLSYM, name);
}

void *vgpu_dlvsym_target(void *handle, const char *name)
{
	(void)handle;
	return target(VGPU_LOADER_DLVSYM, name);
}

/* Call the real dlsym. Its caller is this library, so RTLD_NEXT searches behind this library. */
static void *ask(void *handle, const char *name)
{
	dlsym_function *real = (dlsym_function *)vgpu_loader(VGPU_LOADER_DLSYM);
	void *found = real ? real(handle, name) : NULL;

	__asm__ volatile(
	    ""
	    :
	    : "r"(found)); /* prevents a tail call, in which dlsym would see another caller */
	return found;
}

/* The result of RTLD_NEXT for `caller`, mostly by a lookup behind this library. Because the library
 * is loaded with the program, that has the right scope. Two cases need a search of the list of
 * objects: a definition between the caller and this library, and a caller behind this library,
 * which could find itself. */
static void *next_of(const void *caller, const char *name)
{
	struct vgpu_object from, us, at;
	void *found;

	if (!vgpu_object_by_address(caller, &from) || !vgpu_object_ourselves(&us))
		return ask(RTLD_NEXT, name);
	found = vgpu_definition_in(name, from.order + 1, us.order);
	if (found)
		return found;
	found = ask(RTLD_NEXT, name);
	if (!found || !vgpu_object_by_address(found, &at) || at.order > from.order)
		return found;
	return vgpu_definition_in(name, from.order + 1, INT_MAX);
}

/* The result of RTLD_DEFAULT, if that found this library first: the next definition behind this
 * library. If there is none, the caller was loaded with RTLD_LOCAL, and its own scope has the
 * driver. Then the result is the caller's own definition or the driver's. */
static void *default_of(const void *caller, const char *name, enum vgpu_function hook)
{
	struct vgpu_object from;
	dlerror_function *clear_error = (dlerror_function *)vgpu_loader(VGPU_LOADER_DLERROR);
	void *found = ask(RTLD_NEXT, name);

	if (found)
		return found;
	if (vgpu_object_by_address(caller, &from))
		found = vgpu_object_function(&from, name);
	if (!found)
		found = vgpu_real_find(hook);
	if (found && clear_error)
		clear_error();
	return found;
}

/* The next definition for a handle that found this library first. If the handle is a forwarder's,
 * that is the driver's function, because a forwarder loads this library and then the driver. If it
 * is the whole program's, the search continues behind this library. */
static void *behind_us(void *handle, const char *name, enum vgpu_function hook)
{
	void *found = NULL;

	if (handle != RTLD_NEXT && !vgpu_object_is_program(handle))
		found = vgpu_in_driver(ask(handle, vgpu_unhooked(hook)), hook);
	return found ? found : ask(RTLD_NEXT, name);
}

/* A program with libc's own dlsym would bypass the hooks. A lookup with a handle of libc, with a
 * version that this library lacks, or with RTLD_NEXT finds libc's own. Return this library's entry
 * instead, even to a library that wraps dlsym. The chain of wrappers still ends at libc's own. */
static void *loader_answer(void *handle, enum vgpu_loader_function function, void *found)
{
	void *own = vgpu_loader(function);

	if (!found && handle == RTLD_NEXT)
		found = own; /* the caller's own scope ends with libc */
	return found && found == own ? vgpu_loader_entry(function) : found;
}

static void *answer(void *handle, const char *name, void *found, const void *caller)
{
	enum vgpu_function hook = (enum vgpu_function)vgpu_hook_named(name);
	int loader = vgpu_loader_named(name);

	if (loader >= 0)
		return loader_answer(handle, (enum vgpu_loader_function)loader, found);
	if (found == vgpu_wrapper(hook))
		found = handle == RTLD_DEFAULT ? default_of(caller, name, hook)
					       : behind_us(handle, name, hook);
	return vgpu_substitute(found, hook);
}

void *vgpu_dlsym(void *handle, const char *name, const void *caller)
{
	void *found = handle == RTLD_NEXT ? next_of(caller, name) : ask(handle, name);

	return answer(handle, name, found, caller);
}

/* A search behind this library ignores `version`, because drivers' symbols have no versions. */
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
	dlvsym_function *real = (dlvsym_function *)vgpu_loader(VGPU_LOADER_DLVSYM);
	void *found = handle == RTLD_NEXT ? next_of(caller, name) : real(handle, name, version);

	return answer(handle, name, found, caller);
}
