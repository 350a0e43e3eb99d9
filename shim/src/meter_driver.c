/* See meter_driver.h. */
#include "meter_driver.h"

#include "execs.h"
#include "step.h"

enum {
	RELAXED = 2,		    /* CU_STREAM_CAPTURE_MODE_RELAXED */
	RESERVED_CURRENT = 5,	    /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
	GRAPH_RESERVED_CURRENT = 2, /* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
};

uint32_t vgpu_meters_live;

bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes)
{
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)meter->pool;

	if (vgpu_meter_state(meter) == VGPU_METER_GRAPHS)
		return real_cuDeviceGetGraphMemAttribute(meter->device, GRAPH_RESERVED_CURRENT,
							 bytes) == CUDA_SUCCESS;
	return real_cuMemPoolGetAttribute(pool, RESERVED_CURRENT, bytes) == CUDA_SUCCESS;
}

uint64_t vgpu_meter_last_reserved(const struct vgpu_meter *meter)
{
	uint64_t bytes;

	return vgpu_meter_reserved(meter, &bytes) ? bytes : vgpu_meter_charged(meter);
}

void vgpu_meter_set_charged(struct vgpu_meter *meter, uint64_t bytes)
{
	bool before = meter->charged_bytes, after = bytes;

	__atomic_store_n(&meter->charged_bytes, bytes, __ATOMIC_RELAXED);
	if (before != after)
		__atomic_add_fetch(&vgpu_meters_live, after ? 1 : -1, __ATOMIC_RELAXED);
}

bool vgpu_meter_follow(struct vgpu_meter *meter)
{
	uint64_t before = meter->charged_bytes, after = vgpu_meter_last_reserved(meter);

	if (meter->card < 0 || after == before)
		return false;
	VGPU_AT(METER_SHRUNK);
	if (after < before)
		vgpu_refund(meter->card, before - after);
	else if (vgpu_charge(meter->card, after - before) != VGPU_OK)
		return false;
	vgpu_meter_set_charged(meter, after);
	if (after < before && vgpu_meter_state(meter) == VGPU_METER_GRAPHS)
		vgpu_execs_trimmed(meter->card);
	return after < before;
}

CUresult vgpu_trim_graphs(CUdevice device, int card)
{
	uint64_t before_bytes = 0, after_bytes = 0;
	CUresult result;

	(void)real_cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED_CURRENT, &before_bytes);
	result = real_cuDeviceGraphMemTrim(device);
	(void)real_cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED_CURRENT, &after_bytes);
	if (after_bytes != before_bytes)
		vgpu_execs_trimmed(card);
	return result;
}

static CUresult give_back(struct vgpu_meter *meter, uint64_t keep_bytes)
{
	if (vgpu_meter_state(meter) == VGPU_METER_GRAPHS)
		return vgpu_trim_graphs(meter->device, meter->card);
	return real_cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)meter->pool, keep_bytes);
}

CUresult vgpu_meter_shrink(struct vgpu_meter *meter, const struct vgpu_metered_call *call,
			   uint64_t keep_bytes)
{
	int mode = RELAXED;
	CUresult exchanged = real_cuThreadExchangeStreamCaptureMode(&mode);
	CUresult result = call ? call->undo(call) : CUDA_SUCCESS;

	if (result == CUDA_SUCCESS)
		result = give_back(meter, keep_bytes);
	if (exchanged == CUDA_SUCCESS)
		real_cuThreadExchangeStreamCaptureMode(&mode);
	return result;
}
