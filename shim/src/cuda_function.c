/*
 * Questions about functions, and settings of theirs: a driver that loads lazily may load them for
 * it. One that was launched, or that the driver says is loaded, is asked without measuring.
 */
#include "first.h"
#include "homes.h"
#include "hooks.h"
#include "seen.h"

#define ASKING(symbol, params, args)                                                               \
	CUresult symbol params                                                                     \
	{                                                                                          \
		CUresult result;                                                                   \
                                                                                                   \
		if (!function || vgpu_needs_no_loading(function))                                  \
			return real_##symbol args;                                                 \
		VGPU_CALL_LOADING_IN(vgpu_home_of_function(function), result, real_##symbol args); \
		return result;                                                                     \
	}

ASKING(cuFuncLoad, (CUfunction function), (function))
ASKING(cuFuncGetAttribute, (int *value, int attribute, CUfunction function),
       (value, attribute, function))
ASKING(cuFuncSetAttribute, (CUfunction function, int attribute, int value),
       (function, attribute, value))
ASKING(cuFuncSetCacheConfig, (CUfunction function, int config), (function, config))
ASKING(cuFuncSetSharedMemConfig, (CUfunction function, int config), (function, config))
ASKING(cuFuncSetBlockShape, (CUfunction function, int x, int y, int z), (function, x, y, z))
ASKING(cuFuncSetSharedSize, (CUfunction function, unsigned int bytes), (function, bytes))
ASKING(cuFuncGetModule, (CUmodule * module, CUfunction function), (module, function))
ASKING(cuFuncGetName, (const char **name, CUfunction function), (name, function))
ASKING(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *bytes),
       (function, index, offset, bytes))
ASKING(cuOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, CUfunction function, int threads, size_t shared_bytes),
       (blocks, function, threads, shared_bytes))
ASKING(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int *blocks, CUfunction function, int threads, size_t shared_bytes, unsigned int flags),
       (blocks, function, threads, shared_bytes, flags))
ASKING(cuOccupancyMaxPotentialBlockSize,
       (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of_block,
	size_t shared_bytes, int limit),
       (grid, block, function, shared_of_block, shared_bytes, limit))
ASKING(cuOccupancyMaxPotentialBlockSizeWithFlags,
       (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of_block,
	size_t shared_bytes, int limit, unsigned int flags),
       (grid, block, function, shared_of_block, shared_bytes, limit, flags))
ASKING(cuOccupancyAvailableDynamicSMemPerBlock,
       (size_t *bytes, CUfunction function, int blocks, int threads),
       (bytes, function, blocks, threads))
ASKING(cuOccupancyMaxPotentialClusterSize,
       (int *size, CUfunction function, const CUlaunchConfig *config), (size, function, config))
ASKING(cuOccupancyMaxActiveClusters,
       (int *count, CUfunction function, const CUlaunchConfig *config), (count, function, config))

/* A kernel's, for any card: there it is loaded into the primary context, where that is active. */
static struct vgpu_visit visit_device(CUdevice device, CUcontext *retained)
{
	unsigned int flags;
	int active = 0;

	*retained = NULL;
	if (real_cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
	    real_cuDevicePrimaryCtxRetain(retained, device) != CUDA_SUCCESS)
		*retained = NULL;
	return vgpu_visit_context(*retained);
}

#define ASKING_ON(symbol, params, args)                                                            \
	CUresult symbol params                                                                     \
	{                                                                                          \
		CUcontext retained;                                                                \
		struct vgpu_visit visit = visit_device(device, &retained);                         \
		CUresult result;                                                                   \
                                                                                                   \
		VGPU_CALL_LOADING(result, real_##symbol args);                                     \
		vgpu_visit_end(visit);                                                             \
		if (retained)                                                                      \
			(void)cuDevicePrimaryCtxRelease_v2(device);                                \
		return result;                                                                     \
	}

ASKING_ON(cuKernelGetAttribute, (int *value, int attribute, CUkernel kernel, CUdevice device),
	  (value, attribute, kernel, device))
ASKING_ON(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device),
	  (attribute, value, kernel, device))
ASKING_ON(cuKernelSetCacheConfig, (CUkernel kernel, int config, CUdevice device),
	  (kernel, config, device))
