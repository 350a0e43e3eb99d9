/*
 * What dlsym and dlvsym return for the names of hooks.
 *
 * The real lookup is made first. If it finds the driver's own function, the caller gets the
 * wrapper. If it finds this library's export, the caller gets what it would have got without the
 * library. That is usual in a search of the whole process, because the library is preloaded. Any
 * other result, for example a private library's function of the same name, is returned as it is.
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

/* The address for dlsym.S to jump to. NULL: the library itself must answer for that name. */
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

/* Call the real dlsym with this library as its caller: RTLD_NEXT then searches behind it. */
static void *ask(void *handle, const char *name)
{
	dlsym_function *real = (dlsym_function *)vgpu_loader(VGPU_LOADER_DLSYM);
	void *found = real ? real(handle, name) : NULL;

	__asm__ volatile("" : : "r"(found)); /* a tail call would present another caller */
	return found;
}

/*
 * RTLD_NEXT relative to `caller`. The library is loaded with the program, so a lookup behind it has
 * the right scope. Two cases need a search of the list of objects: a definition between the caller
 * and the library, and a caller behind the library that would find itself.
 */
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

/*
 * The result of RTLD_DEFAULT, which found this library first. It is the next definition behind this
 * library. If there is none, it is the caller's own or the driver's, because a caller that was
 * loaded with RTLD_LOCAL sees the driver in its own scope.
 */
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

/*
 * For a handle in which this library comes first. It is the whole program's handle, where the
 * search continues behind the library, or a forwarder's, which depends on this library and then the
 * driver.
 */
static void *behind_us(void *handle, const char *name, enum vgpu_function hook)
{
	void *found = NULL;

	if (handle != RTLD_NEXT && !vgpu_object_is_program(handle))
		found = vgpu_in_driver(ask(handle, vgpu_unhooked(hook)), hook);
	return found ? found : ask(RTLD_NEXT, name);
}

/*
 * A caller that gets libc's own dlsym bypasses the hooks. It would get it by a handle of libc, by a
 * version that this library lacks, or by RTLD_NEXT. So return this library's entry instead, even to
 * a library that wraps dlsym: the chain of wrappers still ends at libc's own.
 */
static void *loader_answer(void *handle, enum vgpu_loader_function function, void *found)
{
	void *own = vgpu_loader(function);

	if (!found && handle == RTLD_NEXT)
		found = own; /* in the caller's own scope libc is last */
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

/* Drivers give their symbols no versions, so the search behind this library ignores `version`. */
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
	dlvsym_function *real = (dlvsym_function *)vgpu_loader(VGPU_LOADER_DLVSYM);
	void *found = handle == RTLD_NEXT ? next_of(caller, name) : real(handle, name, version);

	return answer(handle, name, found, caller);
}
