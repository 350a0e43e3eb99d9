/*
 * One generation of the driver, SIMGPU_GENERATION. The one after all that exist has what today's
 * clients do not support: a new name, and an old name that means another function.
 */
#include "abi/cuda_abi.h"
#include "entry/resolve.h"

#define UNSEEN_GENERATION 14000

const int sim_cuda_version = SIMGPU_GENERATION;

#pragma GCC visibility push(default)
CUresult cuUnseenName(int *answer);
CUresult cuMemAlloc_v3(CUdeviceptr *out, size_t bytes, uint64_t flags);
#pragma GCC visibility pop

CUresult cuUnseenName(int *answer)
{
	*answer = UNSEEN_GENERATION;
	return CUDA_SUCCESS;
}

/* Takes flags and refuses them all. */
CUresult cuMemAlloc_v3(CUdeviceptr *out, size_t bytes, uint64_t flags)
{
	(void)out, (void)bytes, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define LATER(symbol, base) {#base, (any_function)symbol, UNSEEN_GENERATION, false},
const struct row sim_later_rows[] = {LATER(cuUnseenName, cuUnseenName)
					 LATER(cuMemAlloc_v3, cuMemAlloc)};
const size_t sim_later_count = sizeof(sim_later_rows) / sizeof(*sim_later_rows);
