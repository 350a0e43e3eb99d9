/* Wrappers of multicast objects. Their own memory is negligible. Memory that is bound to an object
 * stays charged until it is unbound or the object is released. */
#include "charge/claims.h"
#include "loader/hooks.h"

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	const struct vgpu_physical object = {.charge = {.place = {.gpu = VGPU_GPU_UNMANAGED}},
					     .device = VGPU_MULTICAST};
	uint32_t claim = vgpu_claim_new(&object);
	CUresult result;

	if (!claim)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMulticastCreate(handle, prop);
	vgpu_claim_end(claim, result,
		       (struct vgpu_claim_to){.kind = VGPU_CLAIM_HANDLE,
					      .key = result == CUDA_SUCCESS ? *handle : 0});
	return result;
}

/* Define a wrapper of a call that binds memory. `claim` claims the memory before the driver's
 * call. */
#define HOOK(symbol, library, params, args)
#define CUDA_BINDING_HOOK(symbol, base, first, last, claim, params, args)                          \
	CUresult symbol params                                                                     \
	{                                                                                          \
		struct vgpu_claim_to to = {                                                        \
		    .kind = VGPU_CLAIM_BINDING,                                                    \
		    .one_of_several = true,                                                        \
		    .key = offset,                                                                 \
		    .extent = size_bytes,                                                          \
		    .owner = multicast,                                                            \
		};                                                                                 \
		uint32_t claims;                                                                   \
		CUresult result;                                                                   \
                                                                                                   \
		if (!(claim))                                                                      \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = real_##symbol args;                                                       \
		vgpu_claim_end(claims, result, to);                                                \
		return result;                                                                     \
	}
#include "loader/hooks.def"

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
			   size_t size_bytes)
{
	uint32_t claims = vgpu_take_bindings(multicast, device, offset, size_bytes);
	CUresult result = real_cuMulticastUnbind(multicast, device, offset, size_bytes);

	vgpu_settle_claims(claims, result);
	return result;
}
