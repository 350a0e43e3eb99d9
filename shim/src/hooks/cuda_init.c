/* Wrapper of cuInit: attaches the process, and keeps the driver's library loaded. */
#include "charge/enforcement.h"
#include "charge/place.h"
#include "loader/hooks.h"
#include "loader/loader.h"

CUresult cuInit(unsigned int flags)
{
	static bool kept;
	enum vgpu_enforcement enforcement = vgpu_enforcement_begin();
	CUresult result;

	if (enforcement == VGPU_ENFORCEMENT_FAILED)
		return CUDA_ERROR_NOT_PERMITTED;
	result = real_cuInit(flags);
	if (result != CUDA_SUCCESS)
		return result;
	/* Do not let the program unload the driver's library. It could leave GPU memory allocated.
	 * Another copy, loaded later, would give out the same handles for other objects. */
	if (enforcement == VGPU_ENFORCEMENT_ACTIVE &&
	    !__atomic_exchange_n(&kept, true, __ATOMIC_RELAXED))
		vgpu_loader_keep(vgpu_real_pointer(VGPU_ID_cuInit));
	vgpu_register_devices();
	return CUDA_SUCCESS;
}
