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

#include "objects.h"
#include "resolve.h"

/* Entered from dlsym.S. */
void *vgpu_dlsym_target(const char *name);
void *vgpu_dlvsym_target(const char *name);
void *vgpu_dlsym(void *handle, const char *name, const void *caller);
void *vgpu_dlvsym(void *handle, const char *name, const char *version, const void *caller);

enum loader_function { LOADER_DLSYM, LOADER_DLVSYM, LOADER_DLERROR, LOADER_FUNCTION_COUNT };

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
typedef char *dlerror_function(void);

static const char *const LOADER_NAMES[] = {
    [LOADER_DLSYM] = "dlsym",
    [LOADER_DLVSYM] = "dlvsym",
    [LOADER_DLERROR] = "dlerror",
};

/*
 * libc's own, not another interposer's, which might lead back to us: since glibc 2.34 and in musl
 * it is in libc, which not every musl gives a soname; in older glibc it is in libdl, which may come
 * late or never, and then nobody has a handle to look in either.
 */
static void *loader(enum loader_function function)
{
	static void *found[LOADER_FUNCTION_COUNT];
	void *real = __atomic_load_n(&found[function], __ATOMIC_RELAXED);
	struct vgpu_object object;

	if (real)
		return real;
	if (vgpu_object_by_soname("libc.so.6", &object) ||
	    vgpu_object_by_definition("__libc_start_main", &object))
		real = vgpu_object_function(&object, LOADER_NAMES[function]);
	if (!real && vgpu_object_by_soname("libdl.so.2", &object))
		real = vgpu_object_function(&object, LOADER_NAMES[function]);
	__atomic_store_n(&found[function], real, __ATOMIC_RELAXED);
	return real;
}

static void *no_answer(void)
{
	return NULL;
}

static void *target(enum loader_function function, const char *name)
{
	void *real = loader(function);

	if (!real)
		return (void *)no_answer;
	return vgpu_hook_named(name) < 0 ? real : NULL;
}

void *vgpu_dlsym_target(const char *name)
{
	return target(LOADER_DLSYM, name);
}

void *vgpu_dlvsym_target(const char *name)
{
	return target(LOADER_DLVSYM, name);
}

/* The real dlsym with us as its caller: RTLD_NEXT is what comes after us. */
static void *ask(void *handle, const char *name)
{
	dlsym_function *real = (dlsym_function *)loader(LOADER_DLSYM);
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

	if (!vgpu_object_by_address(caller, &from) ||
	    !vgpu_object_by_address((const void *)next_of, &us))
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
	dlerror_function *forget = (dlerror_function *)loader(LOADER_DLERROR);
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

static void *answer(void *handle, const char *name, void *found, const void *caller)
{
	enum vgpu_function hook = (enum vgpu_function)vgpu_hook_named(name);

	if (found == vgpu_wrapper(hook))
		found =
		    handle == RTLD_DEFAULT ? default_of(caller, name, hook) : ask(RTLD_NEXT, name);
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
	dlvsym_function *real = (dlvsym_function *)loader(LOADER_DLVSYM);
	void *found = handle == RTLD_NEXT ? next_of(caller, name) : real(handle, name, version);

	return answer(handle, name, found, caller);
}
