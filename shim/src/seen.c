/* See seen.h. */
#include "seen.h"

struct vgpu_wiped *vgpu_seen_pages;
static struct vgpu_wiped *kernel_pages;

static uint32_t contexts;
static bool kernels_lost; /* some are not in the set */

static CUfunction *way(struct vgpu_seen *set, CUfunction handle, size_t number)
{
	return &set->functions[(vgpu_seen_home(handle) + number) % VGPU_SEEN_FUNCTIONS];
}

static CUfunction *find(struct vgpu_seen *set, CUfunction handle)
{
	for (size_t i = 0; set && i < VGPU_SEEN_WAYS; i++)
		if (__atomic_load_n(way(set, handle, i), __ATOMIC_RELAXED) == handle)
			return way(set, handle, i);
	return NULL;
}

bool vgpu_seen_elsewhere(CUfunction function)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));

	return !function || find(seen, function);
}

/* Two threads may write it down twice, and one may write over another's: measured once more. */
static bool put(struct vgpu_seen *set, CUfunction handle)
{
	for (size_t i = 0; set && i < VGPU_SEEN_WAYS; i++) {
		CUfunction *place = way(set, handle, i);
		if (__atomic_load_n(place, __ATOMIC_RELAXED))
			continue;
		__atomic_store_n(place, handle, __ATOMIC_RELAXED);
		return true;
	}
	return false;
}

void vgpu_see(CUfunction function)
{
	static uint32_t turn;
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));

	if (seen && !put(seen, function))
		__atomic_store_n(
		    way(seen, function,
			__atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % VGPU_SEEN_WAYS),
		    function, __ATOMIC_RELAXED);
}

void vgpu_unsee(CUfunction function)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));
	CUfunction *place;

	while (function && (place = find(seen, function)))
		__atomic_store_n(place, NULL, __ATOMIC_RELAXED);
}

void vgpu_forget_seen(void)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));

	for (size_t i = 0; seen && i < VGPU_SEEN_FUNCTIONS; i++)
		if (__atomic_load_n(&seen->functions[i], __ATOMIC_RELAXED))
			__atomic_store_n(&seen->functions[i], NULL, __ATOMIC_RELAXED);
}

void vgpu_note_kernel(CUkernel kernel)
{
	struct vgpu_seen *kernels = vgpu_wiped_pages(&kernel_pages, sizeof(*kernels));
	CUfunction handle = (CUfunction)(void *)kernel;

	if (handle && !find(kernels, handle) && !put(kernels, handle))
		__atomic_store_n(&kernels_lost, true, __ATOMIC_RELAXED);
}

bool vgpu_is_kernel(CUfunction handle)
{
	if (__atomic_load_n(&kernels_lost, __ATOMIC_RELAXED))
		return true;
	return __atomic_load_n(&kernel_pages, __ATOMIC_RELAXED) &&
	       find(vgpu_wiped_pages(&kernel_pages, sizeof(struct vgpu_seen)), handle);
}

CUfunction vgpu_seen_key(CUfunction kernel, uint32_t context)
{
	uint64_t spread = (uint64_t)context * UINT64_C(0x9e3779b97f4a7c15);

	return (CUfunction)(uintptr_t)(((uintptr_t)kernel ^ spread << 1) | 1);
}

/* What was seen without a context's name was seen in the only one. */
void vgpu_note_context(void)
{
	if (__atomic_add_fetch(&contexts, 1, __ATOMIC_SEQ_CST) == 2)
		vgpu_forget_seen();
}

bool vgpu_several_contexts(void)
{
	return __atomic_load_n(&contexts, __ATOMIC_SEQ_CST) > 1;
}
