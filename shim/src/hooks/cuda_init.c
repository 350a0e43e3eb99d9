/* Wrapper of cuInit: attaches the process, and keeps the driver loaded. */
#include "charge/enforcement.h"
#include "charge/place.h"
#include "loader/hooks.h"
#include "loader/loader.h"

/*
 * A driver that is unloaded may leave the GPU's memory allocated without any call; one loaded in
 * its place gives out the same handles again, which would be mistaken for the old ones.
 */
static void keep_driver(void)
{
	static bool kept;

	if (__atomic_exchange_n(&kept, true, __ATOMIC_RELAXED))
		return;
	vgpu_loader_keep(vgpu_real_pointer(VGPU_ID_cuInit));
}

CUresult cuInit(unsigned int flags)
{
	enum vgpu_enforcement enforcement = vgpu_enforcement_begin();
	CUresult result;

	if (enforcement == VGPU_ENFORCEMENT_FAILED)
		return CUDA_ERROR_NOT_PERMITTED;
	result = real_cuInit(flags);
	if (result != CUDA_SUCCESS)
		return result;
	if (enforcement == VGPU_ENFORCEMENT_ACTIVE)
		keep_driver();
	vgpu_register_devices();
	return CUDA_SUCCESS;
}
