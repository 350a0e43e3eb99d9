#include "compute/current.h"

#include "charge/generations.h"
#include "charge/place.h"
#include "loader/capture_mode.h"
#include "loader/hooks.h"

__thread int vgpu_current;
static __thread uint32_t generation; /* of the context that vgpu_current is about */
int vgpu_open_captures;

int vgpu_current_find(void)
{
	struct vgpu_place place;

	if (vgpu_place_current(&place) != CUDA_SUCCESS)
		return -1; /* not cached, because an unhooked call may make a context current */
	vgpu_current = place.gpu >= 0 ? place.gpu + 1 : -1;
	generation = place.context;
	return place.gpu >= 0 ? place.gpu : -1;
}

/* Another thread may have ended the context since. The handle may then name a new context. */
uint32_t vgpu_current_generation(void)
{
	if (vgpu_current_gpu() >= 0 && vgpu_generation_is_current(generation))
		return generation;
	return vgpu_current_find() >= 0 ? generation : 0;
}

/* A driver that lacks the query has no captures. After any other error the launch counts as
 * captured and does not wait, because the driver will refuse it. */
bool vgpu_is_captured_on(CUstream stream)
{
	int status = 0, mode = vgpu_capture_mode_relax();
	CUresult result = real_cuStreamIsCapturing(stream, &status);

	vgpu_capture_mode_restore(mode);
	return (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND) || status != 0;
}
