/*
 * Locates the dynamic loader's functions, and corrects the arguments of dlopen and dlmopen.
 *
 * A library opened with RTLD_DEEPBIND would find the driver's functions, and even dlsym, in its own
 * dependencies before this library. So that flag is removed. dlmopen opens a driver's library in
 * the program's namespace, because this library is in no other namespace.
 */
#include "loader/loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "loader/objects.h"
#include "os/text.h"

/* The first three arguments of a call, as saved by dlsym.S. */
struct vgpu_registers {
	uintptr_t third, second, first;
};

/* Called from dlsym.S. */
void *vgpu_dlopen_target(struct vgpu_registers *call);
void *vgpu_dlmopen_target(struct vgpu_registers *call);

static const struct {
	const char *name;
	void *entry; /* this library's replacement */
} FUNCTIONS[VGPU_LOADER_COUNT] = {
    [VGPU_LOADER_DLSYM] = {"dlsym", (void *)dlsym},
    [VGPU_LOADER_DLVSYM] = {"dlvsym", (void *)dlvsym},
    [VGPU_LOADER_DLOPEN] = {"dlopen", (void *)dlopen},
    [VGPU_LOADER_DLMOPEN] = {"dlmopen", (void *)dlmopen},
    [VGPU_LOADER_DLERROR] = {"dlerror", NULL},
};

/* Find libc's own function. In glibc since 2.34 and in musl it is in libc, and musl's libc may have
 * no soname. In older glibc it is in libdl. If libdl is not loaded, no program can call the
 * function. */
static void *libcs_own(const char *name)
{
	struct vgpu_object object;
	void *own = NULL;

	if (vgpu_object_find("libc.so.6", NULL, &object) ||
	    vgpu_object_find(NULL, "__libc_start_main", &object))
		own = vgpu_object_function(&object, name);
	if (!own && vgpu_object_find("libdl.so.2", NULL, &object))
		own = vgpu_object_function(&object, name);
	return own;
}

/* The real function. If a library behind this one wraps dlopen or dlmopen, return its wrapper. A
 * wrapper of dlsym is skipped: it may have looked up its "real" dlsym through this library, and the
 * two would call each other. */
static void *find(enum vgpu_loader_function function)
{
	struct vgpu_object us;
	void *own = libcs_own(FUNCTIONS[function].name);
	void *next = NULL;

	if (own && (function == VGPU_LOADER_DLOPEN || function == VGPU_LOADER_DLMOPEN) &&
	    vgpu_object_ourselves(&us))
		next = vgpu_definition_in(FUNCTIONS[function].name, us.order + 1, INT_MAX);
	return next ? next : own;
}

void *vgpu_loader(enum vgpu_loader_function function)
{
	static void *found[VGPU_LOADER_COUNT];
	void *known = __atomic_load_n(&found[function], __ATOMIC_RELAXED);

	if (known)
		return known;
	known = find(function);
	__atomic_store_n(&found[function], known, __ATOMIC_RELAXED);
	return known;
}

int vgpu_loader_named(const char *name)
{
	if (!name || name[0] != 'd' || name[1] != 'l')
		return -1;
	for (int function = 0; function < VGPU_LOADER_WRAPPED; function++)
		if (vgpu_text_same(FUNCTIONS[function].name, name))
			return function;
	return -1;
}

void *vgpu_loader_entry(enum vgpu_loader_function function)
{
	return FUNCTIONS[function].entry;
}

static void *no_answer(void)
{
	return NULL;
}

void *vgpu_loader_target(enum vgpu_loader_function function)
{
	void *real = vgpu_loader(function);
	return real ? real : (void *)no_answer;
}

/* Open the object once more, by the loader's name for it, because RTLD_NODELETE keeps it loaded. */
void vgpu_loader_keep(const void *address)
{
	void *(*open)(const char *path, int mode) =
	    (void *(*)(const char *, int))vgpu_loader(VGPU_LOADER_DLOPEN);
	struct vgpu_object object;

	if (open && vgpu_object_by_address(address, &object) && *object.path)
		(void)open(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static bool is_driver(const char *path)
{
	static const char *const stems[] = {"libcuda.so", "libnvidia-ml.so"};
	const char *file = path;

	for (const char *at = path; at && *at; at++)
		if (*at == '/')
			file = at + 1;
	for (size_t i = 0; file && i < sizeof(stems) / sizeof(*stems); i++) {
		const char *rest = vgpu_text_after(file, stems[i]);
		if (rest && (!*rest || *rest == '.'))
			return true;
	}
	return false;
}

void *vgpu_dlopen_target(struct vgpu_registers *call)
{
	call->second &= ~(uintptr_t)RTLD_DEEPBIND;
	return vgpu_loader_target(VGPU_LOADER_DLOPEN);
}

void *vgpu_dlmopen_target(struct vgpu_registers *call)
{
	if (is_driver((const char *)call->second))
		call->first = LM_ID_BASE;
	if (call->first == LM_ID_BASE)
		call->third &= ~(uintptr_t)RTLD_DEEPBIND;
	return vgpu_loader_target(VGPU_LOADER_DLMOPEN);
}
