#include "compute/current.h"

#include "charge/place.h"
#include "loader/capture_mode.h"
#include "loader/hooks.h"

__thread int vgpu_current;
int vgpu_open_captures;

int vgpu_current_find(void)
{
	struct vgpu_place place;

	if (vgpu_place_current(&place) != CUDA_SUCCESS)
		return -1; /* without a context: do not cache, unhooked calls may create one */
	vgpu_current = place.gpu >= 0 ? place.gpu + 1 : -1;
	return place.gpu >= 0 ? place.gpu : -1;
}

/* A driver without this query has no captures. On any other error the launch is not delayed,
 * because the driver will refuse it. */
bool vgpu_is_captured_on(CUstream stream)
{
	int status = 0, mode = vgpu_capture_mode_relax();
	CUresult result = real_cuStreamIsCapturing(stream, &status);

	vgpu_capture_mode_restore(mode);
	return (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND) || status != 0;
}
