/*
 * The table of the driver's functions, found by soname among the loaded objects.
 *
 * A program may load the driver at any time, unload it, and load it again at another address. After
 * each change this file looks up the driver's functions again, so that no stale pointer is called.
 */
#include "loader/resolve.h"

#include <stddef.h>

#include "loader/names.h"
#include "loader/objects.h"
#include "os/text.h"

enum { NAME_SLOTS = 1024 };
_Static_assert(2 * VGPU_HOOK_COUNT < NAME_SLOTS, "names.h");

void *vgpu_real[VGPU_FUNCTION_COUNT];
static uintptr_t
    real_base[VGPU_LIBRARY_COUNT]; /* load bias of the object that vgpu_real was read from */
/* The numbers of loads and unloads at the latest search. UINT64_MAX, and not 0, means no search
 * yet, because musl counts from 0. */
static struct vgpu_object_changes seen[VGPU_LIBRARY_COUNT] = {
    [VGPU_LIBRARY_cuda] = {UINT64_MAX, UINT64_MAX},
    [VGPU_LIBRARY_nvml] = {UINT64_MAX, UINT64_MAX},
};

/* How to recognize the driver among the loaded objects: by its soname and the function `first`,
 * which a forwarder of the same soname lacks. `unhooked` is a function that every driver has and
 * that is not hooked. */
static const struct {
	const char *soname, *first, *unhooked;
} LIBRARIES[VGPU_LIBRARY_COUNT] = {
    [VGPU_LIBRARY_cuda] = {"libcuda.so.1", "cuInit", "cuDriverGetVersion"},
    [VGPU_LIBRARY_nvml] = {"libnvidia-ml.so.1", "nvmlInit_v2", "nvmlSystemGetNVMLVersion"},
};

static const struct {
	const char *name;
	enum vgpu_library library;
} FUNCTIONS[VGPU_FUNCTION_COUNT] = {
#define HOOK(symbol, library, params, args) [VGPU_ID_##symbol] = {#symbol, VGPU_LIBRARY_##library},
#define REAL(symbol, library, params, args) HOOK(symbol, library, params, args)
#include "loader/hooks.def"
};

void *vgpu_wrapper(enum vgpu_function hook)
{
	static void *const wrappers[VGPU_HOOK_COUNT] = {
#define HOOK(symbol, library, params, args) [VGPU_ID_##symbol] = (void *)symbol,
#include "loader/hooks.def"
	};
	return wrappers[hook];
}

static const char *name_of_hook(int hook)
{
	return FUNCTIONS[hook].name;
}

int vgpu_hook_named(const char *name)
{
	static uint16_t slots[NAME_SLOTS];
	static struct vgpu_names names = {name_of_hook, VGPU_HOOK_COUNT, NAME_SLOTS, slots, 0};

	if (!name || (!vgpu_text_after(name, "cu") && !vgpu_text_after(name, "nvml")))
		return -1;
	uint32_t slot = vgpu_names_start(&names, name);
	return vgpu_names_next(&names, name, &slot);
}

static void read_functions(enum vgpu_library library, const struct vgpu_object *object)
{
	for (int i = 0; i < VGPU_FUNCTION_COUNT; i++) {
		if (FUNCTIONS[i].library != library)
			continue;
		void *real = object ? vgpu_object_function(object, FUNCTIONS[i].name) : NULL;
		__atomic_store_n(&vgpu_real[i], real, __ATOMIC_RELAXED);
	}
}

/* After a load, search for the driver again. After an unload, read the driver's functions again
 * too, because another copy may now be at the same address. */
static void refresh_unchanged(struct vgpu_object_changes now, void *data)
{
	enum vgpu_library library = *(enum vgpu_library *)data;
	struct vgpu_object object;

	if (__atomic_load_n(&seen[library].loads, __ATOMIC_RELAXED) == now.loads &&
	    __atomic_load_n(&seen[library].unloads, __ATOMIC_RELAXED) == now.unloads)
		return;
	bool loaded =
	    vgpu_object_find(LIBRARIES[library].soname, LIBRARIES[library].first, &object);
	uintptr_t base = loaded ? object.base : 0;
	if (__atomic_load_n(&real_base[library], __ATOMIC_RELAXED) != base ||
	    __atomic_load_n(&seen[library].unloads, __ATOMIC_RELAXED) != now.unloads)
		read_functions(library, loaded ? &object : NULL);
	__atomic_store_n(&real_base[library], base, __ATOMIC_RELEASE);
	__atomic_store_n(&seen[library].unloads, now.unloads, __ATOMIC_RELAXED);
	__atomic_store_n(&seen[library].loads, now.loads, __ATOMIC_RELAXED);
}

/* vgpu_objects_while_unchanged lets one thread run at a time, so no thread overwrites a later
 * result with an earlier one. */
uintptr_t vgpu_refresh(enum vgpu_library library)
{
	vgpu_objects_while_unchanged(refresh_unchanged, &library);
	return __atomic_load_n(&real_base[library], __ATOMIC_ACQUIRE);
}

void *vgpu_real_find(enum vgpu_function function)
{
	vgpu_refresh(FUNCTIONS[function].library);
	return __atomic_load_n(&vgpu_real[function], __ATOMIC_RELAXED);
}

void *vgpu_in_driver(const void *unhooked, enum vgpu_function hook)
{
	struct vgpu_object object;

	if (!vgpu_object_by_address(unhooked, &object) ||
	    !vgpu_text_same(object.soname, LIBRARIES[FUNCTIONS[hook].library].soname))
		return NULL;
	return vgpu_object_function(&object, FUNCTIONS[hook].name);
}

struct answer {
	void *found;
	enum vgpu_function hook;
};

/* No object may be unloaded meanwhile, because an unloaded object's names cannot be read. */
static void substitute_unchanged(struct vgpu_object_changes now, void *data)
{
	struct answer *answer = data;
	enum vgpu_library library = FUNCTIONS[answer->hook].library;

	refresh_unchanged(now, &library);
	if (answer->found == __atomic_load_n(&vgpu_real[answer->hook], __ATOMIC_RELAXED) ||
	    answer->found == vgpu_in_driver(answer->found, answer->hook))
		answer->found = vgpu_wrapper(answer->hook);
}

void *vgpu_substitute(void *found, enum vgpu_function hook)
{
	struct answer answer = {found, hook};

	if (found)
		vgpu_objects_while_unchanged(substitute_unchanged, &answer);
	return answer.found;
}

const char *vgpu_unhooked(enum vgpu_function hook)
{
	return LIBRARIES[FUNCTIONS[hook].library].unhooked;
}
