/*
 * What dlsym and dlvsym answer for the names of hooks.
 *
 * The real lookup answers first. Where it gives the driver's own function, the caller gets our
 * wrapper; where it gives our own export (we are preloaded, so a search of the whole process meets
 * us first), the caller gets what it would have got without us. Anything else, such as a private
 * library's function of the same name, is untouched.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>

#include "loader/loader.h"
#include "loader/objects.h"
#include "loader/resolve.h"

/* Entered from dlsym.S. */
void *vgpu_dlsym_target(void *handle, const char *name);
void *vgpu_dlvsym_target(void *handle, const char *name);
void *vgpu_dlsym(void *handle, const char *name, const void *caller);
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller);

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
typedef char *dlerror_function(void);

static void *no_answer(void)
{
	return NULL;
}

/* Ours to answer are the names of hooks and the loader's own. */
static void *target(enum vgpu_loader_function function, const char *name)
{
	void *real = vgpu_loader(function);

	if (!real)
		return (void *)no_answer;
	return vgpu_hook_named(name) < 0 && vgpu_loader_named(name) < 0 ? real : NULL;
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

/* The real dlsym with us as its caller: RTLD_NEXT is what comes after us. */
static void *ask(void *handle, const char *name)
{
	dlsym_function *real = (dlsym_function *)vgpu_loader(VGPU_LOADER_DLSYM);
	void *found = real ? real(handle, name) : NULL;

	__asm__ volatile("" : : "r"(found)); /* a tail call would name another caller */
	return found;
}

/*
 * RTLD_NEXT as `caller` means it. We are loaded with the program, so behind us the real lookup
 * knows the right scope; only what lies between the caller and us, or a caller that itself defines
 * the name behind us, needs a walk.
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
 * RTLD_DEFAULT would have met us before anything else: what lies behind us; else the caller's own
 * definition, or the driver's, which a library loaded with RTLD_LOCAL sees in its own scope.
 */
static void *default_of(const void *caller, const char *name, enum vgpu_function hook)
{
	struct vgpu_object from;
	dlerror_function *forget = (dlerror_function *)vgpu_loader(VGPU_LOADER_DLERROR);
	void *found = ask(RTLD_NEXT, name);

	if (found)
		return found;
	if (vgpu_object_by_address(caller, &from))
		found = vgpu_object_function(&from, name);
	if (!found)
		found = vgpu_real_find(hook);
	if (found && forget)
		forget();
	return found;
}

/*
 * A handle that leads to us first: of the whole program, where the global search goes on behind us,
 * or of a forwarder, which needs us and then the driver.
 */
static void *behind_us(void *handle, const char *name, enum vgpu_function hook)
{
	void *found = NULL;

	if (handle != RTLD_NEXT && !vgpu_object_is_program(handle))
		found = vgpu_in_driver(ask(handle, vgpu_unhooked(hook)), hook);
	return found ? found : ask(RTLD_NEXT, name);
}

/*
 * Whoever gets libc's own dlsym gets past us: by a handle of libc, a version that ours has not, or
 * as the next one. Ours does as well, also for a library that wraps it: it goes on to libc's own.
 */
static void *loader_answer(void *handle, enum vgpu_loader_function function, void *found)
{
	void *own = vgpu_loader(function);

	if (!found && handle == RTLD_NEXT)
		found = own; /* the caller has a scope of its own, in which libc is last */
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

/* Drivers version none of their symbols: past us there is no version to ask for. */
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
	dlvsym_function *real = (dlvsym_function *)vgpu_loader(VGPU_LOADER_DLVSYM);
	void *found = handle == RTLD_NEXT ? next_of(caller, name) : real(handle, name, version);

	return answer(handle, name, found, caller);
}
