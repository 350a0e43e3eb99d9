/* See seen.h. */
#include "seen.h"

struct vgpu_wiped *vgpu_seen_pages;

static CUfunction *way(struct vgpu_seen *seen, CUfunction function, size_t number)
{
	return &seen->functions[(vgpu_seen_home(function) + number) % VGPU_SEEN_FUNCTIONS];
}

bool vgpu_seen_elsewhere(CUfunction function)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));
	bool room = false;

	if (!seen || !function)
		return true;
	for (size_t i = 0; i < VGPU_SEEN_WAYS; i++) {
		CUfunction there = __atomic_load_n(way(seen, function, i), __ATOMIC_RELAXED);
		if (there == function)
			return true;
		room |= !there;
	}
	return !room;
}

/* Two threads may write it down twice, and one may write over another's: measured once more. */
void vgpu_see(CUfunction function)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));

	for (size_t i = 0; seen && i < VGPU_SEEN_WAYS; i++) {
		CUfunction *place = way(seen, function, i);
		if (!__atomic_load_n(place, __ATOMIC_RELAXED)) {
			__atomic_store_n(place, function, __ATOMIC_RELAXED);
			return;
		}
	}
}

void vgpu_forget_seen(void)
{
	struct vgpu_seen *seen = vgpu_wiped_pages(&vgpu_seen_pages, sizeof(*seen));

	for (size_t i = 0; seen && i < VGPU_SEEN_FUNCTIONS; i++)
		if (__atomic_load_n(&seen->functions[i], __ATOMIC_RELAXED))
			__atomic_store_n(&seen->functions[i], NULL, __ATOMIC_RELAXED);
}
