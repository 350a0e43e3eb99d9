/* Wrappers of the allocations of 2009, whose sizes and addresses have 32 bits. No program for a GPU
 * of 2017 or later uses them. Where a limit applies they are refused, because they are not
 * charged. */
#include "charge/place.h"
#include "loader/hooks.h"

#define HOOK(symbol, library, params, args)
#define CUDA_REFUSED_HOOK(symbol, params, args)                                                    \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_place place;                                                           \
		CUresult result = vgpu_place_current(&place);                                      \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return place.gpu == VGPU_GPU_UNMANAGED ? real_##symbol args                        \
						       : CUDA_ERROR_NOT_SUPPORTED;                 \
	}
#include "loader/hooks.def"
