/* See current.h. */
#include "compute/current.h"

#include "charge/place.h"
#include "loader/hooks.h"
#include "loader/relaxed.h"

__thread int vgpu_current;
int vgpu_open_captures;

int vgpu_current_find(void)
{
	struct vgpu_place place;

	if (vgpu_place_current(&place) != CUDA_SUCCESS)
		return -1; /* no context, which may change without a call that is wrapped */
	vgpu_current = place.gpu >= 0 ? place.gpu + 1 : -1;
	return place.gpu >= 0 ? place.gpu : -1;
}

/* A driver that cannot tell has no captures; an error is the program's to see, at its launch. */
bool vgpu_is_captured_on(CUstream stream)
{
	int status = 0, mode = vgpu_relaxed_begin();
	CUresult result = real_cuStreamIsCapturing(stream, &status);

	vgpu_relaxed_end(mode);
	return (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND) || status != 0;
}
