/*
 * Wrappers of multicast objects, which take no memory worth counting, but hold what is bound to
 * them: bound memory stays charged until it is unbound or the object goes.
 */
#include "claims.h"
#include "hooks.h"

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	struct vgpu_reservation nothing = {.place = {.card = VGPU_CARD_UNMANAGED}};
	uint32_t claim = vgpu_claim_new(&nothing, VGPU_MULTICAST);
	CUresult result;

	if (!claim)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMulticastCreate(handle, prop);
	if (result == CUDA_SUCCESS)
		vgpu_forget_handle(*handle);
	vgpu_claim_end(claim, result,
		       (struct vgpu_claim_to){.kind = VGPU_CLAIM_HANDLE,
					      .key = result == CUDA_SUCCESS ? *handle : 0});
	return result;
}

static struct vgpu_claim_to bound(CUmemGenericAllocationHandle multicast, size_t offset,
				  size_t size_bytes)
{
	return (struct vgpu_claim_to){.kind = VGPU_CLAIM_BINDING,
				      .key = offset,
				      .extent = size_bytes,
				      .owner = vgpu_memory_named(multicast)};
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
			    CUmemGenericAllocationHandle memory, size_t memory_offset,
			    size_t size_bytes, unsigned long long flags)
{
	struct vgpu_claim_to to = bound(multicast, offset, size_bytes);
	CUresult result;
	uint32_t claim;

	if (!vgpu_claim_handle(memory, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result =
	    real_cuMulticastBindMem(multicast, offset, memory, memory_offset, size_bytes, flags);
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
			       size_t offset, CUmemGenericAllocationHandle memory,
			       size_t memory_offset, size_t size_bytes, unsigned long long flags)
{
	struct vgpu_claim_to to = bound(multicast, offset, size_bytes);
	CUresult result;
	uint32_t claim;

	if (!vgpu_claim_handle(memory, &claim))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMulticastBindMem_v2(multicast, device, offset, memory, memory_offset,
					    size_bytes, flags);
	vgpu_claim_end(claim, result, to);
	return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
			     CUdeviceptr address, size_t size_bytes, unsigned long long flags)
{
	struct vgpu_claim_to to = bound(multicast, offset, size_bytes);
	CUresult result;
	uint32_t claims;

	if (!vgpu_claim_range(address, size_bytes, &claims))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMulticastBindAddr(multicast, offset, address, size_bytes, flags);
	vgpu_claim_end(claims, result, to);
	return result;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
				size_t offset, CUdeviceptr address, size_t size_bytes,
				unsigned long long flags)
{
	struct vgpu_claim_to to = bound(multicast, offset, size_bytes);
	CUresult result;
	uint32_t claims;

	if (!vgpu_claim_range(address, size_bytes, &claims))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = real_cuMulticastBindAddr_v2(multicast, device, offset, address, size_bytes, flags);
	vgpu_claim_end(claims, result, to);
	return result;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
			   size_t size_bytes)
{
	uint32_t claims =
	    vgpu_take_bindings(vgpu_memory_named(multicast), device, offset, size_bytes);
	CUresult result = real_cuMulticastUnbind(multicast, device, offset, size_bytes);

	vgpu_settle_claims(claims, result);
	return result;
}
